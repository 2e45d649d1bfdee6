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

// Backlog implements [backends.Outbox]. Counts stop at 100,000. The oldest age
// is that of the oldest among the first records of all shards.
func (s *Store) Backlog(ctx context.Context) (backends.Backlog, error) {
	var b backends.Backlog
	var waiting int64
	var age float64
	count := func(from string) string {
		return fmt.Sprintf("(select count(*) from (select from %s limit %d) c)", from, countCap+1)
	}
	query := `select ` + count(s.names.outbox) + `,
` + count(s.names.outbox+" where next_attempt_at > statement_timestamp()") + `,
` + count(s.names.dead) + `, ` + count(s.names.parked) + `,
coalesce(extract(epoch from clock_timestamp() - (select min(f.created_at) from ` + s.names.shards + ` s, lateral (
    select created_at from ` + s.names.outbox + ` o where o.shard = s.shard order by o.id limit 1) f)), 0)::float8,
(select count(*) from ` + s.names.shards + ` s left join ` + s.names.forwarders + ` f
    on f.owner = s.owner and f.expires_at > clock_timestamp() where f.owner is null),
array(select owner from ` + s.names.forwarders + ` where expires_at > clock_timestamp() order by owner)`
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginRead, func(batch *pgx.Batch) {
			batch.Queue(planGuards)
			batch.Queue(query).QueryRow(func(row pgx.Row) error {
				return row.Scan(&waiting, &b.Delayed, &b.Dead, &b.Parked, &age, &b.UnownedShards, &b.Owners)
			})
		})
	})
	if err != nil {
		return backends.Backlog{}, fmt.Errorf("postgres: backlog: %w", mend(err))
	}
	b.Capped = max(waiting, b.Delayed, b.Dead, b.Parked) > countCap
	b.Ready = max(0, min(waiting, countCap)-b.Delayed)
	b.OldestAge = max(0, time.Duration(age*float64(time.Second)))
	return b, nil
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
