package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/outmill/outmill/backends"
)

// countCap bounds what counting costs.
const countCap = 100_000

// Backlog implements [backends.Outbox]. Counts stop at 100,000.
func (s *Store) Backlog(ctx context.Context) (backends.Backlog, error) {
	var b backends.Backlog
	var waiting, age int64
	count := func(from string) string {
		return fmt.Sprintf("(select count(*) from (select 1 from %s limit %d))", from, countCap+1)
	}
	n := s.names
	alive := ` from ` + n.forwarders + ` where expires_at > ` + now
	err := s.reads.QueryRowContext(ctx, `select `+count(n.outbox)+`, `+
		count(n.outbox+` where next_attempt_at > `+now)+`, `+count(n.dead)+`, `+count(n.parked)+`,
coalesce(`+now+` - (select created_at from `+n.outbox+` order by id limit 1), 0),
(select count(*) from `+n.shards+` where owner is null or owner not in (select owner`+alive+`))`).
		Scan(&waiting, &b.Delayed, &b.Dead, &b.Parked, &age, &b.UnownedShards)
	if err == nil {
		err = query(ctx, s.reads, func(scan func(...any) error) error {
			var owner string
			if err := scan(&owner); err != nil {
				return err
			}
			b.Owners = append(b.Owners, owner)
			return nil
		}, `select owner`+alive+` order by owner`)
	}
	if err != nil {
		return backends.Backlog{}, fmt.Errorf("sqlite: backlog: %w", mend(err))
	}
	b.Capped = max(waiting, b.Delayed, b.Dead, b.Parked) > countCap
	b.Ready = max(0, min(waiting, countCap)-b.Delayed)
	b.OldestAge = max(0, time.Duration(age)*time.Microsecond)
	return b, nil
}

// Watch implements [backends.Waker]: the last id handed out and the number of
// requeues tell whether anything has been added.
func (s *Store) Watch() func(ctx context.Context) (bool, error) {
	last, changes := int64(-1), int64(-1)
	return func(ctx context.Context) (bool, error) {
		var l, c int64
		err := s.reads.QueryRowContext(ctx, `select coalesce((select seq from sqlite_sequence where name = ?), 0), (select n from `+s.names.changes+`)`,
			s.names.prefix+"outbox").Scan(&l, &c)
		if err != nil {
			return false, fmt.Errorf("sqlite: look for new records: %w", mend(err))
		}
		fresh := l != last || c != changes
		last, changes = l, c
		return fresh, nil
	}
}

// Purge implements [backends.Purger].
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("sqlite: purge: the limit is %d, allowed is 1 or more", limit)
	}
	if s.cfg.Retention == 0 {
		return 0, nil
	}
	var n int64
	err := s.write(ctx, func(c *sql.Conn) error {
		res, err := c.ExecContext(ctx, `delete from `+s.names.archive+` where id in (
select id from `+s.names.archive+` where delivered_at < `+now+` - ? order by delivered_at limit ?)`, s.cfg.Retention.Microseconds(), limit)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sqlite: purge: %w", err)
	}
	return int(n), nil
}
