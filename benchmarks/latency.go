package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// stamps keeps when each message was committed and when the broker gave its word.
type stamps struct {
	*counter
	want      int
	mu        sync.Mutex
	committed map[string]time.Time
	accepted  map[string]time.Time
}

func newStamps(want int) *stamps {
	return &stamps{counter: newCounter(want), want: want, committed: map[string]time.Time{}, accepted: map[string]time.Time{}}
}

// accept notes a message's first acceptance.
func (s *stamps) accept(id string) {
	if s.put(s.accepted, id) {
		s.add(1)
	}
}

// put reports whether the message had no stamp there.
func (s *stamps) put(m map[string]time.Time, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := m[id]; known {
		return false
	}
	m[id] = time.Now()
	return true
}

func (s *stamps) delays() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []float64
	for id, at := range s.accepted {
		if from, ok := s.committed[id]; ok {
			// The broker may be faster than the committer's own clock.
			out = append(out, max(0, milliseconds(at.Sub(from))))
		}
	}
	return out
}

// stamped tells when records are accepted.
type stamped struct {
	backends.Broker
	stamps *stamps
}

func (s stamped) Publish(ctx context.Context, records []backends.Record) error {
	err := s.Broker.Publish(ctx, records)
	if err == nil {
		for i := range records {
			s.stamps.accept(records[i].MessageID)
		}
	}
	return err
}

func latency(ctx context.Context, b *bench) error {
	ours, err := b.latencyOurs(ctx, b.messages)
	if err != nil {
		return err
	}
	b.showDelays("Outmill, polling, no LISTEN", ours)
	for _, x := range []struct {
		name   string
		config incumbent
	}{
		{"incumbent, defaults", incumbentDefaults()},
		{"incumbent, tuned: " + tunedText, incumbentTuned()},
	} {
		delays, err := b.latencyIncumbent(ctx, x.config, max(1, b.messages/2))
		if err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		b.showDelays(x.name, delays)
	}
	b.atMost("p50", quantile(ours, 0.5), 10, "ms")
	b.atMost("p99", quantile(ours, 0.99), 50, "ms")
	return nil
}

func (b *bench) latencyOurs(ctx context.Context, n int) ([]float64, error) {
	s, drop, err := b.store(ctx, postgres.Config{})
	if err != nil {
		return nil, err
	}
	defer drop()
	topic, dropTopic, err := b.topic(ctx)
	if err != nil {
		return nil, err
	}
	defer dropTopic()
	k, err := kafka.New(kafka.Config{Brokers: b.seeds})
	if err != nil {
		return nil, err
	}
	defer func() { _ = k.Close(ctx) }()
	st := newStamps(n)
	stop, err := start(ctx, s, stamped{k, st}, forwarder.Config{})
	if err != nil {
		return nil, err
	}
	delays, err := st.measure(ctx, func(m *message.Message) error {
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return s.Publisher(tx).Publish(topic, m) })
	})
	return delays, errors.Join(err, stop())
}

// measure sends the messages, one every 100 ms, and waits for the last word.
func (s *stamps) measure(ctx context.Context, send func(*message.Message) error) ([]float64, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range s.want {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		m := messages(i, 1)[0]
		if err := send(m); err != nil {
			return nil, err
		}
		s.put(s.committed, m.UUID)
	}
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.delays(), nil
}

func (b *bench) latencyIncumbent(ctx context.Context, c incumbent, n int) ([]float64, error) {
	w, err := b.incumbent(ctx, c)
	if err != nil {
		return nil, err
	}
	defer w.teardown()
	topic, dropTopic, err := b.topic(ctx)
	if err != nil {
		return nil, err
	}
	defer dropTopic()
	pub, err := b.watermillKafka(sarama.WaitForLocal) // its default
	if err != nil {
		return nil, err
	}
	defer func() { _ = pub.Close() }()
	st := newStamps(n)
	stop, err := w.forward(ctx, stampedPublisher{pub, st})
	if err != nil {
		return nil, err
	}
	defer stop()
	return st.measure(ctx, func(m *message.Message) error { return w.publish(ctx, topic, m) })
}

type stampedPublisher struct {
	message.Publisher
	stamps *stamps
}

func (p stampedPublisher) Publish(topic string, msgs ...*message.Message) error {
	err := p.Publisher.Publish(topic, msgs...)
	if err == nil {
		for _, m := range msgs {
			p.stamps.accept(m.UUID)
		}
	}
	return err
}
