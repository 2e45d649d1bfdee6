package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outmill/outmill/backends/stores/postgres"
)

// appending compares transactions that differ in one statement: each writes a
// business row, and then publishes or makes an INSERT of the same columns into a
// plain table. The INSERT's sequence is a constant: the publisher's is allotted.
func appending(ctx context.Context, b *bench) error {
	for _, c := range []comparison{
		{driver: "pgx", connections: 1, records: 1},
		{driver: "pgx", connections: 8, records: 1},
		{driver: "database/sql", connections: 1, records: 1},
		{driver: "database/sql", connections: 8, records: 1},
		{driver: "pgx", connections: 8, records: 10, rowByRow: true},
		{driver: "pgx", connections: 8, records: 10},
	} {
		if err := b.appendPair(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// comparison is what a pair is to do.
type comparison struct {
	driver               string
	connections, records int
	rowByRow             bool // by hand: a statement each, as code that appends where things happen does
}

// pair is the two sides of a comparison.
type pair struct {
	b      *bench
	store  *postgres.Store
	schema string
	db     *sql.DB
	comparison
}

func (b *bench) appendPair(ctx context.Context, c comparison) error {
	schema := b.newSchema()
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
	p := &pair{b: b, store: s, schema: schema, comparison: c}
	publish, byHand := p.publish, p.insert
	if c.driver != "pgx" {
		p.db = stdlib.OpenDBFromPool(b.pool)
		p.db.SetMaxIdleConns(0) // it borrows the pool's
		defer func() { _ = p.db.Close() }()
		publish, byHand = p.publishSQL, p.insertSQL
	}
	name := fmt.Sprintf("%s, %d connections, %d: ", c.driver, c.connections, c.records)
	ours := sample{Name: name + "published", Unit: "ms"}
	hand := sample{Name: name + "INSERT by hand", Unit: "ms"}
	if c.rowByRow {
		hand.Name += ", one each"
	}
	ratio := sample{Name: "  ratio of neighbours", Unit: "×"}
	for i := range 4*b.runs + 1 { // in turn, so that both meet the same machine
		first, second := byHand, publish
		if i%2 == 1 {
			first, second = second, first
		}
		x, err := b.transactions(ctx, c.connections, first)
		if err != nil {
			return err
		}
		y, err := b.transactions(ctx, c.connections, second)
		if err != nil {
			return err
		}
		if i%2 == 1 {
			x, y = y, x
		}
		if i > 0 {
			hand.Values, ours.Values, ratio.Values = append(hand.Values, x), append(ours.Values, y), append(ratio.Values, y/x)
		}
	}
	b.show(hand)
	b.show(ours)
	b.show(ratio)
	if c.records == 1 || c.rowByRow {
		b.atMost("publishing against an INSERT by hand", ratio.median(), 1.25, "×")
	}
	return nil
}

// transactions returns the mean time of a transaction.
func (b *bench) transactions(ctx context.Context, connections int, transaction func(context.Context) error) (float64, error) {
	var wg sync.WaitGroup
	errs := make([]error, connections)
	each := max(1, b.options.transactions/connections)
	began := time.Now()
	for i := range connections {
		wg.Go(func() {
			for n := 0; n < each && errs[i] == nil; n++ {
				errs[i] = transaction(ctx)
			}
		})
	}
	wg.Wait()
	took := milliseconds(time.Since(began)) / float64(each)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}

const note = "an order"

func (p *pair) business() string { return `insert into ` + p.schema + `.business (note) values ($1)` }

// handmade takes as many rows as it is given.
func (p *pair) handmade() string {
	return `insert into ` + p.schema + `.handmade (message_id, topic, aggregate, sequence, payload, metadata)
select m, 'orders', a, 1, p, '{}' from unnest($1::text[], $2::text[], $3::bytea[]) as t(m, a, p)`
}

func (p *pair) rows() (ids, names []string, payloads [][]byte) {
	from := rand.IntN(aggregates)
	for i := range p.records {
		ids, names, payloads = append(ids, idOf(from+i)), append(names, aggregateOf(from+i)), append(payloads, payload)
	}
	return ids, names, payloads
}

func (p *pair) publish(ctx context.Context) error {
	return p.pgx(ctx, func(tx pgx.Tx) error {
		return p.store.Publisher(tx).Publish("orders", messages(rand.IntN(aggregates), p.records)...)
	})
}

func (p *pair) insert(ctx context.Context) error {
	return p.pgx(ctx, func(tx pgx.Tx) error {
		ids, names, payloads := p.rows()
		if !p.rowByRow {
			_, err := tx.Exec(ctx, p.handmade(), ids, names, payloads)
			return err
		}
		for i := range ids {
			if _, err := tx.Exec(ctx, p.handmade(), ids[i:i+1], names[i:i+1], payloads[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *pair) pgx(ctx context.Context, then func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p.b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.business(), note); err != nil {
			return err
		}
		return then(tx)
	})
}

func (p *pair) publishSQL(ctx context.Context) error {
	return p.sql(ctx, func(tx *sql.Tx) error {
		return p.store.SQLPublisher(tx).Publish("orders", messages(rand.IntN(aggregates), p.records)...)
	})
}

func (p *pair) insertSQL(ctx context.Context) error {
	return p.sql(ctx, func(tx *sql.Tx) error {
		ids, names, payloads := p.rows()
		_, err := tx.ExecContext(ctx, p.handmade(), ids, names, payloads)
		return err
	})
}

func (p *pair) sql(ctx context.Context, then func(*sql.Tx) error) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, p.business(), note); err == nil {
		err = then(tx)
	}
	if err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}
