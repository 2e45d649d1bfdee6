package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// refusing is a broker, and a publisher, that is out of order.
type refusing struct{}

var errRefusing = backends.Unavailable(errors.New("the broker refuses"))

func (refusing) Publish(context.Context, []backends.Record) error { return errRefusing }
func (refusing) Close(context.Context) error                      { return nil }

type refusingPublisher struct{}

func (refusingPublisher) Publish(string, ...*message.Message) error { return errRefusing }
func (refusingPublisher) Close() error                              { return nil }

// acceptingPublisher stands for a healthy broker.
type acceptingPublisher struct{}

func (acceptingPublisher) Publish(string, ...*message.Message) error { return nil }
func (acceptingPublisher) Close() error                              { return nil }

func outage(ctx context.Context, b *bench) error {
	healthy, err := b.commitsOurs(ctx, nothing{}, b.outage/4)
	if err != nil {
		return err
	}
	down, err := b.commitsOurs(ctx, refusing{}, b.outage)
	if err != nil {
		return err
	}
	theirsUp, err := b.commitsIncumbent(ctx, acceptingPublisher{}, b.outage/4)
	if err != nil {
		return err
	}
	theirsDown, err := b.commitsIncumbent(ctx, refusingPublisher{}, b.outage)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		name   string
		delays []float64
	}{
		{"Outmill, healthy broker", healthy},
		{"Outmill, broker refusing", down},
		{"incumbent, healthy broker", theirsUp},
		{"incumbent, broker refusing", theirsDown},
	} {
		b.printf("%-58s p50 %s ms, p99 %s ms, max %s ms of %d transactions\n", x.name, number(quantile(x.delays, 0.5)),
			number(quantile(x.delays, 0.99)), number(quantile(x.delays, 1)), len(x.delays))
	}
	b.atMost("commit latency while refusing against healthy, p50", quantile(down, 0.5)/quantile(healthy, 0.5), 1.1, "×")
	b.atMost("the same, p99 (1.5: one slow disk flush is noise)", quantile(down, 0.99)/quantile(healthy, 0.99), 1.5, "×")
	return nil
}

// commits runs four producers, each twenty transactions a second, and returns
// how long each transaction took.
func commits(ctx context.Context, d time.Duration, transaction func(n int) error) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var all []float64
	var failed error
	var wg sync.WaitGroup
	for p := range 4 {
		wg.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for n := p; ; n += 4 {
				start := time.Now()
				err := transaction(n)
				mu.Lock()
				all = append(all, milliseconds(time.Since(start)))
				failed = errors.Join(failed, err)
				mu.Unlock()
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return all, failed
}

func (b *bench) commitsOurs(ctx context.Context, broker backends.Broker, d time.Duration) ([]float64, error) {
	s, drop, err := b.store(ctx, postgres.Config{})
	if err != nil {
		return nil, err
	}
	defer drop()
	fwd, err := forwarder.New(s, broker, quiet(forwarder.Config{}))
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fwd.Run(run) }()
	all, err := commits(ctx, d, func(n int) error {
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return s.Publisher(tx).Publish("orders", messages(n, 1)...) })
	})
	stop()
	return all, errors.Join(err, <-done)
}

func (b *bench) commitsIncumbent(ctx context.Context, out message.Publisher, d time.Duration) ([]float64, error) {
	w, err := b.incumbent(ctx, incumbentDefaults())
	if err != nil {
		return nil, err
	}
	defer w.teardown()
	stop, err := w.forward(ctx, out)
	if err != nil {
		return nil, err
	}
	defer stop()
	return commits(ctx, d, func(n int) error {
		tx, err := w.db.BeginTx(ctx, &sql.TxOptions{})
		if err != nil {
			return err
		}
		p, err := w.tx(tx)
		if err == nil {
			err = p.Publish("orders", messages(n, 1)...)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}
