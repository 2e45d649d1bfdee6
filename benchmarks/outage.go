package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

var errRefusing = backends.Unavailable(errors.New("the broker refuses"))

// faulty is a broker that accepts everything, or nothing.
type faulty struct{ down *atomic.Bool }

func (f faulty) answer() error {
	if f.down.Load() {
		return errRefusing
	}
	return nil
}

func (f faulty) Publish(context.Context, []backends.Record) error { return f.answer() }
func (f faulty) Close(context.Context) error                      { return nil }

// faultyPublisher is the same for the incumbent.
type faultyPublisher struct{ faulty }

func (f faultyPublisher) Publish(string, ...*message.Message) error { return f.answer() }
func (f faultyPublisher) Close() error                              { return nil }

// outage watches business transactions before, during and after an outage of
// the broker. What the times before and after differ by is noise: the outage is
// judged against the worse of the two.
func outage(ctx context.Context, b *bench) error {
	ours, err := b.outageOurs(ctx)
	if err != nil {
		return err
	}
	ours.show(b, "Outmill")
	if theirs, err := b.outageIncumbent(ctx); err == nil {
		theirs.show(b, "incumbent")
	} else {
		return err
	}
	b.atMost("commits while refusing against healthy, p50", ours.ratio(0.5), 1.1, "×")
	b.atMost("the same, p99 (one slow flush of the disk is noise)", ours.ratio(0.99), 1.5, "×")
	return nil
}

// phases is how long each transaction took.
type phases struct{ before, down, after []float64 }

func (p phases) show(b *bench, who string) {
	b.showDelays(who+", commits before the outage", p.before)
	b.showDelays(who+", commits while the broker refuses", p.down)
	b.showDelays(who+", commits after it", p.after)
}

func (p phases) ratio(q float64) float64 {
	return quantile(p.down, q) / max(quantile(p.before, q), quantile(p.after, q))
}

// phasesOf lasts a little more than one and a half times the outage.
func phasesOf(ctx context.Context, outage time.Duration, down *atomic.Bool, transaction func(n int) error) (p phases, err error) {
	if _, err = commits(ctx, outage/24, transaction); err != nil { // to warm up
		return p, err
	}
	if p.before, err = commits(ctx, outage/4, transaction); err != nil {
		return p, err
	}
	down.Store(true)
	if p.down, err = commits(ctx, outage, transaction); err != nil {
		return p, err
	}
	down.Store(false)
	p.after, err = commits(ctx, outage/4, transaction)
	return p, err
}

const (
	producers    = 4
	producerTick = 50 * time.Millisecond
)

// commits runs four producers, each of which begins a transaction every 50 ms.
// A transaction's time counts from when it should have begun, so that one that
// waits behind a slow one counts as slow too.
func commits(ctx context.Context, d time.Duration, transaction func(n int) error) ([]float64, error) {
	var (
		mu    sync.Mutex
		all   []float64
		fault error
		wg    sync.WaitGroup
	)
	began := time.Now()
	for p := range producers {
		wg.Go(func() {
			var mine []float64
			var err error
			due := began.Add(producerTick * time.Duration(p) / producers)
			for n := p; due.Sub(began) < d && err == nil; n += producers {
				select {
				case <-time.After(time.Until(due)):
					err = transaction(n)
				case <-ctx.Done():
					err = ctx.Err()
				}
				mine = append(mine, milliseconds(time.Since(due)))
				due = due.Add(producerTick)
			}
			mu.Lock()
			defer mu.Unlock()
			all, fault = append(all, mine...), errors.Join(fault, err)
		})
	}
	wg.Wait()
	return all, fault
}

func (b *bench) outageOurs(ctx context.Context) (p phases, err error) {
	s, drop, err := b.store(ctx, postgres.Config{})
	if err != nil {
		return p, err
	}
	defer drop()
	broker := faulty{&atomic.Bool{}}
	stop, err := start(ctx, s, broker, forwarder.Config{})
	if err != nil {
		return p, err
	}
	p, err = phasesOf(ctx, b.outage, broker.down, func(n int) error {
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return s.Publisher(tx).Publish("orders", messages(n, 1)...) })
	})
	return p, errors.Join(err, stop())
}

// outageIncumbent is shorter: nothing is judged by it.
func (b *bench) outageIncumbent(ctx context.Context) (p phases, err error) {
	w, err := b.incumbent(ctx, incumbentDefaults())
	if err != nil {
		return p, err
	}
	defer w.teardown()
	out := faultyPublisher{faulty{&atomic.Bool{}}}
	stop, err := w.forward(ctx, out)
	if err != nil {
		return p, err
	}
	defer stop()
	return phasesOf(ctx, b.outage/2, out.down, func(n int) error { return w.publish(ctx, "orders", messages(n, 1)...) })
}
