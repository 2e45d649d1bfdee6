package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends/stores/postgres"
)

// appendTransactions is how many transactions each side of a pair makes.
const appendTransactions = 1500

// appending compares transactions that differ in one statement: the business row
// is the same, and then there is a publisher or an INSERT of the same columns.
func appending(ctx context.Context, b *bench) error {
	for _, c := range []struct{ connections, records int }{{1, 1}, {8, 1}, {8, 10}} {
		if err := b.appendPair(ctx, c.connections, c.records); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) appendPair(ctx context.Context, connections, records int) error {
	schema := newSchema()
	s, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer drop()
	if _, err := b.pool.Exec(ctx, `create table `+schema+`.business (id bigint generated always as identity primary key, note text not null);
create table `+schema+`.handmade (id bigint generated always as identity primary key, message_id text not null, topic text not null,
    aggregate text, sequence bigint, payload bytea not null, metadata json not null, created_at timestamptz not null default now())`); err != nil {
		return err
	}
	publish := func(tx pgx.Tx) error {
		return s.Publisher(tx).Publish("orders", messages(rand.IntN(aggregates), records)...)
	}
	byHand := func(tx pgx.Tx) error {
		for range records {
			_, err := tx.Exec(ctx, `insert into `+schema+`.handmade (message_id, topic, aggregate, sequence, payload, metadata)
values ($1, $2, $3, $4, $5, '{}')`, watermill.NewUUID(), "orders", fmt.Sprintf("order-%d", rand.IntN(aggregates)), 1, payload)
			if err != nil {
				return err
			}
		}
		return nil
	}
	ours := sample{name: fmt.Sprintf("publishing %d, %d connections", records, connections), unit: "ms/tx"}
	hand := sample{name: fmt.Sprintf("INSERT of %d by hand, %d connections", records, connections), unit: "ms/tx"}
	ratio := sample{unit: "×"}
	for i := range 2*b.runs + 1 { // in turn, so that both meet the same machine
		x, err := b.transactions(ctx, schema, connections, byHand)
		if err != nil {
			return err
		}
		y, err := b.transactions(ctx, schema, connections, publish)
		if err != nil {
			return err
		}
		if i > 0 {
			hand.values, ours.values, ratio.values = append(hand.values, x), append(ours.values, y), append(ratio.values, y/x)
		}
	}
	b.show(hand)
	b.show(ours)
	b.atMost("publishing against an INSERT by hand", ratio.median(), 1.25, "×")
	return nil
}

// transactions returns the mean time of a transaction.
func (b *bench) transactions(ctx context.Context, schema string, connections int, then func(pgx.Tx) error) (float64, error) {
	var wg sync.WaitGroup
	errs := make([]error, connections)
	start := time.Now()
	for i := range connections {
		wg.Go(func() {
			for range appendTransactions / connections {
				errs[i] = pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `insert into `+schema+`.business (note) values ($1)`, "an order"); err != nil {
						return err
					}
					return then(tx)
				})
				if errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	each := appendTransactions / connections
	return milliseconds(time.Since(start)) / float64(each), nil
}
