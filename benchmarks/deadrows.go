package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// deadRows drains a fresh backlog beside many dead rows, which the server cannot
// clear away while something is held open.
func deadRows(ctx context.Context, b *bench) error {
	var all []measurement
	for _, c := range []struct {
		name string
		hold func(*holding, context.Context) error
	}{
		{"nothing held", func(*holding, context.Context) error { return nil }},
		{"an old snapshot held", (*holding).snapshot},
		{"two write transactions held", (*holding).writes},
	} {
		var w work
		all = append(all, measurement{
			name:  fmt.Sprintf("after %d settled, %s", b.dead, c.name),
			once:  func(ctx context.Context) (float64, error) { return b.drainOverDead(ctx, c.hold, &w) },
			notes: func() { b.showCPU(&w) },
		})
	}
	rates, err := b.inTurn(ctx, "msg/s", all...)
	if err != nil {
		return err
	}
	plain := rates[0].median()
	b.atLeast("with an old snapshot against without", 100*rates[1].median()/plain, 85, "%")
	b.atLeast("with write transactions against without", 100*rates[2].median()/plain, 85, "%")
	return nil
}

// holding is the transactions that are held open.
type holding struct {
	b      *bench
	store  *postgres.Store
	schema string
	open   []pgx.Tx
}

func (h *holding) begin(ctx context.Context, level pgx.TxIsoLevel) (pgx.Tx, error) {
	tx, err := h.b.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err == nil {
		h.open = append(h.open, tx)
	}
	return tx, err
}

func (h *holding) snapshot(ctx context.Context) error {
	tx, err := h.begin(ctx, pgx.RepeatableRead)
	if err == nil {
		_, err = tx.Exec(ctx, "select pg_current_snapshot()")
	}
	return err
}

// writes are one into the outbox and one elsewhere.
func (h *holding) writes(ctx context.Context) error {
	tx, err := h.begin(ctx, pgx.ReadCommitted)
	if err == nil {
		err = h.store.Publisher(tx).Publish("held", messages(0, 1)...)
	}
	if err != nil {
		return err
	}
	if _, err := h.b.pool.Exec(ctx, "create table "+h.schema+".elsewhere (n int)"); err != nil {
		return err
	}
	if tx, err = h.begin(ctx, pgx.ReadCommitted); err == nil {
		_, err = tx.Exec(ctx, "insert into "+h.schema+".elsewhere values (1)")
	}
	return err
}

func (h *holding) end(ctx context.Context) {
	for _, tx := range h.open {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // nothing of it is wanted
	}
}

// drainOverDead lets a forwarder settle many rows and then times the same one
// over fresh ones, which become visible all at once.
func (b *bench) drainOverDead(ctx context.Context, hold func(*holding, context.Context) error, w *work) (rate float64, err error) {
	schema := b.newSchema()
	s, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return 0, err
	}
	defer drop()
	h := &holding{b: b, store: s, schema: schema}
	defer h.end(ctx)
	if err := hold(h, ctx); err != nil {
		return 0, err
	}
	dead, fresh := newCounter(b.dead), newCounter(b.dead+b.rows)
	stop, err := start(ctx, s, nothing{}, forwarder.Config{Hooks: forwarder.Hooks{
		Settled: func(ctx context.Context, outcomes []backends.Outcome, err error) {
			dead.hook(ctx, outcomes, err)
			fresh.hook(ctx, outcomes, err)
		},
	}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := b.fill(ctx, s, "dead", b.dead); err != nil {
		return 0, err
	}
	if err := dead.wait(ctx); err != nil {
		return 0, err
	}
	if err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		for n := 0; n < b.rows; n += 1000 {
			if err := s.Publisher(tx).Publish("fresh", messages(n, min(1000, b.rows-n))...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return 0, err
	}
	before, err := b.cpu(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = fresh.wait(ctx)
	rate = float64(b.rows) / time.Since(began).Seconds()
	return rate, errors.Join(err, w.spent(ctx, b, before))
}
