package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

func deadRows(ctx context.Context, b *bench) error {
	hold := map[string]func(context.Context, *postgres.Store, pgx.Tx) error{
		"nothing held": nil,
		"an old snapshot held": func(ctx context.Context, _ *postgres.Store, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select txid_current_snapshot()")
			return err
		},
		"a write transaction held": func(_ context.Context, s *postgres.Store, tx pgx.Tx) error {
			return s.Publisher(tx).Publish("held", messages(0, 1)...)
		},
	}
	rates := map[string]sample{}
	for _, name := range []string{"nothing held", "an old snapshot held", "a write transaction held"} {
		s, err := b.repeat(fmt.Sprintf("after %d settled rows, %s", b.dead, name), "msg/s", func() (float64, error) {
			return b.drainOverDead(ctx, hold[name])
		})
		if err != nil {
			return err
		}
		rates[name] = s
	}
	plain := rates["nothing held"].median()
	b.atLeast("with an old snapshot against without", 100*rates["an old snapshot held"].median()/plain, 85, "%")
	b.atLeast("with a write transaction against without", 100*rates["a write transaction held"].median()/plain, 85, "%")
	return nil
}

// drainOverDead lets a forwarder settle many rows, which stay in the table's
// indexes while something is held, and then times it over fresh ones that become
// visible all at once.
func (b *bench) drainOverDead(ctx context.Context, hold func(context.Context, *postgres.Store, pgx.Tx) error) (rate float64, err error) {
	s, drop, err := b.store(ctx, postgres.Config{})
	if err != nil {
		return 0, err
	}
	defer drop()
	if hold != nil {
		tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			return 0, err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if err := hold(ctx, s, tx); err != nil {
			return 0, err
		}
	}
	settled := &counter{}
	fwd, err := forwarder.New(s, nothing{}, quiet(forwarder.Config{Hooks: forwarder.Hooks{Settled: settled.hook}}))
	if err != nil {
		return 0, err
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fwd.Run(run) }()
	defer func() {
		stop()
		err = errors.Join(err, <-done)
	}()
	if err := b.fill(ctx, s, "dead", b.dead); err != nil {
		return 0, err
	}
	if err := settled.wait(ctx, b.dead); err != nil {
		return 0, err
	}
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	for n := 0; n < b.rows; n += 1000 {
		if err := s.Publisher(tx).Publish("fresh", messages(n, 1000)...); err != nil {
			return 0, errors.Join(err, tx.Rollback(ctx))
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err = settled.wait(ctx, b.dead+b.rows)
	return float64(b.rows) / time.Since(start).Seconds(), err
}

// counter counts settled records.
type counter struct{ n atomic.Int64 }

func (c *counter) hook(_ context.Context, outcomes []backends.Outcome, err error) {
	if err == nil {
		c.n.Add(int64(len(outcomes)))
	}
}

func (c *counter) wait(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for c.n.Load() < int64(n) {
		select {
		case <-time.After(500 * time.Microsecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d were settled in time", c.n.Load(), n)
		}
	}
	return nil
}
