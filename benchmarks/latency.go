package main

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// stamps keeps when each message was committed and when the broker gave its word.
type stamps struct {
	mu        sync.Mutex
	committed map[string]time.Time
	accepted  map[string]time.Time
}

func newStamps() *stamps {
	return &stamps{committed: map[string]time.Time{}, accepted: map[string]time.Time{}}
}

func (s *stamps) commit(id string) { s.put(s.committed, id) }
func (s *stamps) accept(id string) { s.put(s.accepted, id) }

func (s *stamps) put(m map[string]time.Time, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[id] = time.Now()
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
	ours, err := b.latencyOurs(ctx)
	if err != nil {
		return err
	}
	theirs, err := b.latencyIncumbent(ctx)
	if err != nil {
		return err
	}
	b.printf("%-58s p50 %s ms, p99 %s ms\n", "Outmill, polling", number(quantile(ours, 0.5)), number(quantile(ours, 0.99)))
	b.printf("%-58s p50 %s ms, p99 %s ms\n", "the incumbent, defaults", number(quantile(theirs, 0.5)), number(quantile(theirs, 0.99)))
	b.atMost("p50", quantile(ours, 0.5), 10, "ms")
	b.atMost("p99", quantile(ours, 0.99), 50, "ms")
	return nil
}

func (b *bench) latencyOurs(ctx context.Context) ([]float64, error) {
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
	st := newStamps()
	fwd, err := forwarder.New(s, stamped{k, st}, quiet(forwarder.Config{}))
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- fwd.Run(run) }()
	err = b.oneByOne(ctx, func(m *message.Message) error {
		tx, err := b.pool.Begin(ctx)
		if err != nil {
			return err
		}
		if err := s.Publisher(tx).Publish(topic, m); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		st.commit(m.UUID)
		return nil
	})
	stop()
	if e := <-done; err == nil {
		err = e
	}
	return st.delays(), err
}

// oneByOne sends a message every 100 ms, then waits for stragglers.
func (b *bench) oneByOne(ctx context.Context, send func(*message.Message) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range b.messages {
		if err := send(messages(i, 1)[0]); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (b *bench) latencyIncumbent(ctx context.Context) ([]float64, error) {
	w, err := b.incumbent(ctx, incumbentDefaults())
	if err != nil {
		return nil, err
	}
	defer w.teardown()
	topic, dropTopic, err := b.topic(ctx)
	if err != nil {
		return nil, err
	}
	defer dropTopic()
	pub, err := b.watermillKafka()
	if err != nil {
		return nil, err
	}
	defer func() { _ = pub.Close() }()
	st := newStamps()
	stop, err := w.forward(ctx, stampedPublisher{pub, st})
	if err != nil {
		return nil, err
	}
	defer stop()
	err = b.oneByOne(ctx, func(m *message.Message) error {
		tx, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		p, err := w.tx(tx)
		if err == nil {
			err = p.Publish(topic, m)
		}
		if err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		st.commit(m.UUID)
		return nil
	})
	return st.delays(), err
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
