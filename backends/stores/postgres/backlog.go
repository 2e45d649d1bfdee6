package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

// countCap bounds what counting costs.
const countCap = 100_000

// scanMost is up to what size of the table its rows are counted by reading it
// from its first page. Row by row in an index, dead rows that an old snapshot
// keeps cost thirty times as much; but a large table may be almost empty.
const scanMost = 1 << 30

// backlogStatements measure what waits. Each stops at countCap rows.
type backlogStatements struct {
	around string // the table's size, and all but the outbox
	pages  string // waiting, delayed and the oldest, in no order
	counts string // waiting and delayed, by index
	first  string // the oldest among the first records of all shards
}

func newBacklogStatements(n names) backlogStatements {
	count := func(from string) string {
		return fmt.Sprintf("(select count(*) from (select from %s limit %d) c)", from, countCap+1)
	}
	const age = `coalesce(extract(epoch from clock_timestamp() - %s), 0)::float8`
	return backlogStatements{
		around: `select pg_relation_size($1::text::regclass), ` + count(n.dead) + `, ` + count(n.parked) + `,
(select count(*) from ` + n.shards + ` s left join ` + n.forwarders + ` f
    on f.owner = s.owner and f.expires_at > clock_timestamp() where f.owner is null),
array(select owner from ` + n.forwarders + ` where expires_at > clock_timestamp() order by owner)`,
		pages: `select count(*), count(*) filter (where next_attempt_at > statement_timestamp()), ` + fmt.Sprintf(age, "min(created_at)") + `
from (select created_at, next_attempt_at from ` + n.outbox + fmt.Sprintf(" limit %d", countCap+1) + `) c`,
		counts: `select ` + count(n.outbox+" order by shard, id") + `, ` +
			count(n.outbox+" where next_attempt_at > statement_timestamp()"),
		first: `select ` + fmt.Sprintf(age, `(select min(f.created_at) from `+n.shards+` s, lateral (
    select created_at from `+n.outbox+` o where o.shard = s.shard order by o.id limit 1) f)`),
	}
}

// Backlog implements [backends.Outbox]. Counts stop at 100,000; beyond that the
// oldest age is that of the oldest among the first records of all shards.
func (s *Store) Backlog(ctx context.Context) (backends.Backlog, error) {
	var b backends.Backlog
	// One snapshot for all: a record that is parked meanwhile is in one count.
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
			func(tx pgx.Tx) error { return s.backlog(ctx, tx, &b) })
	})
	if err != nil {
		return backends.Backlog{}, fmt.Errorf("postgres: backlog: %w", mend(err))
	}
	return b, nil
}

func (s *Store) backlog(ctx context.Context, tx pgx.Tx, b *backends.Backlog) error {
	st := &s.stmts.backlog
	var size, waiting int64
	var age float64
	err := tx.QueryRow(ctx, st.around, s.names.outbox).Scan(&size, &b.Dead, &b.Parked, &b.UnownedShards, &b.Owners)
	if err != nil {
		return err
	}
	counted := size <= scanMost
	if counted {
		if err := tx.QueryRow(ctx, st.pages).Scan(&waiting, &b.Delayed, &age); err != nil {
			return err
		}
	}
	if !counted || waiting > countCap {
		batch := &pgx.Batch{}
		batch.Queue(planGuards)
		if !counted {
			batch.Queue(st.counts).QueryRow(func(row pgx.Row) error { return row.Scan(&waiting, &b.Delayed) })
		}
		batch.Queue(st.first).QueryRow(func(row pgx.Row) error { return row.Scan(&age) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	b.Capped = max(waiting, b.Delayed, b.Dead, b.Parked) > countCap
	b.Ready = max(0, min(waiting, countCap)-b.Delayed)
	b.OldestAge = max(0, time.Duration(age*float64(time.Second)))
	return nil
}

// Purge implements [backends.Purger].
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if !s.archiving {
		return 0, nil
	}
	var n int64
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, `delete from `+s.names.archive+` where ctid = any(array(
select ctid from `+s.names.archive+` where delivered_at < statement_timestamp() - $1::interval order by delivered_at limit $2::int8))`,
			s.cfg.Retention, limit)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("postgres: purge: %w", mend(err))
	}
	return int(n), nil
}
