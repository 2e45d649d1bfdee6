package mysql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
)

// countCap bounds what counting costs.
const countCap = 100_000

// Backlog implements [backends.Outbox]. Counts stop at 100,000. Beyond that the
// oldest age is that of the oldest among the first records of all shards, and
// delayed records are counted among the first 100,000.
func (s *Store) Backlog(ctx context.Context) (backends.Backlog, error) {
	b, err := s.backlog(ctx)
	if err != nil {
		return backends.Backlog{}, fmt.Errorf("mysql: backlog: %w", mend(err))
	}
	return b, nil
}

func (s *Store) backlog(ctx context.Context) (b backends.Backlog, err error) {
	n := s.names
	var waiting, age int64
	err = s.db.QueryRowContext(ctx, fmt.Sprintf(`select count(*), coalesce(sum(next_attempt_at > utc_timestamp(6)), 0),
coalesce(timestampdiff(microsecond, min(created_at), utc_timestamp(6)), 0)
from (select next_attempt_at, created_at from %s force index (primary) where id > 0 limit %d) c`, n.outbox, countCap+1)).Scan(&waiting, &b.Delayed, &age)
	if err == nil && waiting > countCap {
		age, err = s.oldest(ctx)
	}
	if err != nil {
		return b, err
	}
	count := func(from string) string {
		return fmt.Sprintf("(select count(*) from (select 1 from %s limit %d) c)", from, countCap+1)
	}
	err = s.db.QueryRowContext(ctx, `select `+count(n.dead)+`, `+count(n.parked)+`,
(select count(*) from `+n.shards+` s left join `+n.forwarders+` f on f.owner = s.owner and f.expires_at > utc_timestamp(6) where f.owner is null)`).
		Scan(&b.Dead, &b.Parked, &b.UnownedShards)
	if err != nil {
		return b, err
	}
	b.Capped = max(waiting, b.Delayed, b.Dead, b.Parked) > countCap
	b.Ready = max(0, min(waiting, countCap)-b.Delayed)
	b.OldestAge = max(0, time.Duration(age)*time.Microsecond)
	return b, query(ctx, s.db, func(scan func(...any) error) error {
		var owner string
		err := scan(&owner)
		b.Owners = append(b.Owners, owner)
		return err
	}, `select owner from `+n.forwarders+` where expires_at > utc_timestamp(6) order by owner`)
}

// oldest is the age of the oldest among the first records of all shards, in
// microseconds.
func (s *Store) oldest(ctx context.Context) (age int64, err error) {
	parts := make([]string, backends.Shards)
	for shard := range parts {
		parts[shard] = fmt.Sprintf("(select created_at from %s where shard = %d and id > 0 order by id limit 1)", s.names.outbox, shard)
	}
	err = s.db.QueryRowContext(ctx, "select coalesce(timestampdiff(microsecond, min(created_at), utc_timestamp(6)), 0) from ("+
		strings.Join(parts, " union all ")+") f").Scan(&age)
	return age, err
}

// Purge implements [backends.Purger].
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("mysql: purge: the limit is %d, allowed is 1 or more", limit)
	}
	if s.cfg.Retention == 0 {
		return 0, nil
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("mysql: purge: %w", mend(err))
	}
	defer func() { _ = conn.Close() }()
	n := 0
	if _, err = conn.ExecContext(ctx, readCommitted); err == nil {
		n, err = remove(ctx, conn, fmt.Sprintf("delete from %s where delivered_at < utc_timestamp(6) - interval %d microsecond order by delivered_at limit %d",
			s.names.archive, s.cfg.Retention.Microseconds(), limit))
	}
	if err != nil {
		return 0, fmt.Errorf("mysql: purge: %w", mend(err))
	}
	return n, nil
}
