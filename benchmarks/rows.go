package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

const aggregates = 5000

var payload = []byte(`{"filler":"` + strings.Repeat("x", 499) + `"}`)

func messages(from, n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(watermill.NewUUID(), payload)
		backends.SetAggregate(out[i], fmt.Sprintf("order-%d", (from+i)%aggregates))
	}
	return out
}

// fill appends n records in transactions of a thousand.
func (b *bench) fill(ctx context.Context, s *postgres.Store, topic string, n int) error {
	for done := 0; done < n; done += 1000 {
		tx, err := b.pool.Begin(ctx)
		if err != nil {
			return err
		}
		if err := s.Publisher(tx).Publish(topic, messages(done, min(1000, n-done))...); err != nil {
			_ = tx.Rollback(ctx)
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// nothing is a broker that accepts everything at once.
type nothing struct{}

func (nothing) Publish(context.Context, []backends.Record) error { return nil }
func (nothing) Close(context.Context) error                      { return nil }

func quiet(cfg forwarder.Config) forwarder.Config {
	cfg.Logger = slog.New(slog.DiscardHandler)
	return cfg
}

// drainOnce runs a forwarder until n records are settled and returns records a
// second.
func drainOnce(ctx context.Context, s backends.Outbox, broker backends.Broker, n int, cfg forwarder.Config) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var settled atomic.Int64
	done := make(chan struct{})
	var once sync.Once
	cfg.Hooks.Settled = func(_ context.Context, outcomes []backends.Outcome, err error) {
		if err == nil && settled.Add(int64(len(outcomes))) >= int64(n) {
			once.Do(func() { close(done) })
		}
	}
	fwd, err := forwarder.New(s, broker, quiet(cfg))
	if err != nil {
		return 0, err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- fwd.Run(run) }()
	select {
	case <-done:
	case err := <-ended:
		return 0, fmt.Errorf("the forwarder stopped with %d of %d settled: %w", settled.Load(), n, err)
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d were settled in time", settled.Load(), n)
	}
	took := time.Since(start)
	stop()
	return float64(n) / took.Seconds(), <-ended
}

// readBack checks a topic: complete, nothing twice, in order per aggregate where
// records carry sequences.
func (b *bench) readBack(ctx context.Context, topic string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.seeds...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer c.Close()
	seen, last := map[string]bool{}, map[string]int64{}
	for len(seen) < n {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d messages are in the topic", len(seen), n)
		}
		var wrong error
		fetches.EachRecord(func(r *kgo.Record) {
			m := message.NewMessage("", nil)
			for _, h := range r.Headers {
				m.Metadata[h.Key] = string(h.Value)
			}
			id := m.Metadata["_watermill_message_uuid"]
			if seen[id] {
				return
			}
			seen[id] = true
			if seq, ok := backends.Sequence(m); ok {
				a := backends.Aggregate(m)
				if seq != last[a]+1 {
					wrong = fmt.Errorf("aggregate %s: %d came after %d", a, seq, last[a])
				}
				last[a] = seq
			}
		})
		if wrong != nil {
			return wrong
		}
	}
	return nil
}
