package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
)

// Lease implements [backends.Outbox]. A shard belongs to an owner for as long as
// the owner's row in outbox_forwarders lasts. Heartbeats hold the write lock, so
// none sees another half done.
func (s *Store) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if owner == "" || ttl <= 0 {
		return backends.Lease{}, fmt.Errorf("sqlite: a lease needs an owner and a term above 0, got %q and %v", owner, ttl)
	}
	lease := backends.Lease{Owner: owner}
	owners := 1
	err := s.write(ctx, func(c *sql.Conn) error {
		// Taken once the lock is held, and before the database's clock is read.
		lease.Deadline = time.Now().Add(ttl)
		for _, step := range []struct {
			query string
			args  []any
		}{
			{`delete from ` + s.names.forwarders + ` where expires_at <= ` + now + ` and owner <> ?`, []any{owner}},
			{`insert into ` + s.names.forwarders + ` (owner, expires_at) values (?, ` + now + ` + ?)
on conflict (owner) do update set expires_at = excluded.expires_at`, []any{owner, ttl.Microseconds()}},
			{`update ` + s.names.shards + ` set owner = ?1, epoch = epoch + 1 where shard in (
    select s.shard from ` + s.names.shards + ` s left join ` + s.names.forwarders + ` f on f.owner = s.owner
    where f.owner is null order by s.shard limit max(0,
        (select (64 + count(*) - 1) / count(*) from ` + s.names.forwarders + `)
        - (select count(*) from ` + s.names.shards + ` where owner = ?1)))`, []any{owner}},
		} {
			if _, err := c.ExecContext(ctx, step.query, step.args...); err != nil {
				return err
			}
		}
		return query(ctx, c, func(scan func(...any) error) error {
			var l backends.ShardLease
			if err := scan(&l.Shard, &l.Epoch, &owners); err != nil {
				return err
			}
			lease.Shards = append(lease.Shards, l)
			return nil
		}, `select shard, epoch, (select count(*) from `+s.names.forwarders+`) from `+s.names.shards+` where owner = ? order by shard`, owner)
	})
	if err != nil {
		return backends.Lease{}, fmt.Errorf("sqlite: lease: %w", err)
	}
	fair := (backends.Shards + owners - 1) / owners
	for i := len(lease.Shards) - 1; i >= fair; i-- {
		lease.Surplus = append(lease.Surplus, lease.Shards[i].Shard)
	}
	return lease, nil
}

// Release implements [backends.Outbox].
func (s *Store) Release(ctx context.Context, lease backends.Lease) error {
	if lease.Owner == "" {
		return errors.New("sqlite: release: the lease has no owner")
	}
	err := s.write(ctx, func(c *sql.Conn) error {
		if len(lease.Shards) == 0 {
			_, err := c.ExecContext(ctx, `delete from `+s.names.forwarders+` where owner = ?`, lease.Owner)
			return err
		}
		args := []any{lease.Owner}
		for _, l := range lease.Shards {
			args = append(args, l.Shard, l.Epoch)
		}
		_, err := c.ExecContext(ctx, `update `+s.names.shards+` set owner = null where owner = ? and (shard, epoch) in (values `+
			marks("(?, ?)", len(lease.Shards))+`)`, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlite: release: %w", err)
	}
	return nil
}

func marks(mark string, n int) string { return mark + strings.Repeat(", "+mark, n-1) }

// querier is what query needs of a connection or a pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query calls each for every row.
func query(ctx context.Context, q querier, each func(scan func(...any) error) error, text string, args ...any) (err error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
