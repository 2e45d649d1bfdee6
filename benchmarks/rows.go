package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// aggregates is how many there are; message n belongs to the one of n modulo it.
const aggregates = 5000

// payload has 512 bytes. It is JSON, since the incumbent's default column is.
var payload = []byte(`{"filler":"` + strings.Repeat("x", 499) + `"}`)

func aggregateOf(n int) string { return fmt.Sprintf("order-%d", n%aggregates) }

// messages makes n messages, numbered from a number on.
func messages(from, n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(idOf(from+i), payload)
		backends.SetAggregate(out[i], aggregateOf(from+i))
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

// start runs a forwarder; stop ends it and returns what it came to.
func start(ctx context.Context, s backends.Outbox, broker backends.Broker, cfg forwarder.Config) (stop func() error, err error) {
	fwd, err := forwarder.New(s, broker, quiet(cfg))
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fwd.Run(run) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-done
	}), nil
}

// work is what drains cost, added up: the workers' time, in nanoseconds, and CPU
// time of this process and of the database's sessions that serve it, in seconds.
type work struct {
	read, publish  atomic.Int64
	client, server float64
	records        int
}

// drainOnce runs a forwarder from its start until n records are settled and
// returns records a second.
func drainOnce(ctx context.Context, s backends.Outbox, broker backends.Broker, n int, cfg forwarder.Config, w *work) (float64, error) {
	settled := newCounter(n)
	cfg.Hooks = forwarder.Hooks{
		Settled: settled.hook,
		Read: func(_ context.Context, records []backends.Record, took time.Duration, _ error) context.Context {
			if len(records) > 0 {
				w.read.Add(int64(took))
			}
			return nil
		},
		Published: func(_ context.Context, _ []backends.Record, took time.Duration, _ error) {
			w.publish.Add(int64(took))
		},
	}
	began := time.Now()
	stop, err := start(ctx, s, broker, cfg)
	if err != nil {
		return 0, err
	}
	if err := settled.wait(ctx); err != nil {
		_ = stop() // the first error is the one to report
		return 0, err
	}
	took := time.Since(began)
	return float64(n) / took.Seconds(), stop()
}

// counter waits for a number of records to be settled, or messages to be sent.
type counter struct {
	n       atomic.Int64
	want    int64
	reached chan struct{}
}

func newCounter(want int) *counter {
	return &counter{want: int64(want), reached: make(chan struct{})}
}

func (c *counter) hook(_ context.Context, outcomes []backends.Outcome, err error) {
	if err == nil {
		c.add(len(outcomes))
	}
}

func (c *counter) add(n int) {
	if now := c.n.Add(int64(n)); now >= c.want && now-int64(n) < c.want {
		close(c.reached)
	}
}

// patience is how long a drain may take.
const patience = 5 * time.Minute

func (c *counter) wait(ctx context.Context) error {
	select {
	case <-c.reached:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%d of %d were forwarded within %v", c.n.Load(), c.want, patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}
