package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
)

// A shard belongs to an owner for as long as the owner's row in
// outbox_forwarders lasts, so a heartbeat writes one row, not 64. Heartbeats of
// all owners are serialised by a row of outbox_state, which makes this right:
//
// 1. A's term ends. B's heartbeat sees it, deletes A's row and takes A's
// shards, raising their epochs.
// 2. A's heartbeat, which was waiting for the lock, now finds its row gone and
// the shards B's.
//
// Without the lock, A could revive its row after B had looked and before B took
// the shards, and both would hold them.
func (s *Store) lockLeases(ctx context.Context, c *sql.Conn) error {
	var n int64
	return c.QueryRowContext(ctx, "select n from "+s.names.state+" where name = 'leases' for update").Scan(&n)
}

// Lease implements [backends.Outbox].
func (s *Store) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if owner == "" || len(owner) > 255 || ttl <= 0 {
		return backends.Lease{}, fmt.Errorf("mysql: a lease needs an owner of 1 to 255 bytes and a term above 0, got %q and %v", owner, ttl)
	}
	var lease backends.Lease
	err := s.write(ctx, func(c *sql.Conn) error {
		if err := s.lockLeases(ctx, c); err != nil {
			return err
		}
		// Taken before the database's clock is read.
		lease = backends.Lease{Owner: owner, Deadline: time.Now().Add(ttl)}
		return s.heartbeat(ctx, c, &lease, ttl)
	})
	if err != nil {
		return backends.Lease{}, fmt.Errorf("mysql: lease: %w", mend(err))
	}
	return lease, nil
}

func (s *Store) heartbeat(ctx context.Context, c *sql.Conn, lease *backends.Lease, ttl time.Duration) error {
	owner := literal(lease.Owner)
	for _, text := range []string{
		"delete from " + s.names.forwarders + " where expires_at <= utc_timestamp(6) and owner <> " + owner,
		fmt.Sprintf("insert into %s (owner, expires_at) values (%s, utc_timestamp(6) + interval %d microsecond) on duplicate key update expires_at = values(expires_at)",
			s.names.forwarders, owner, ttl.Microseconds()),
	} {
		if _, err := c.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	owners, free, err := s.holdings(ctx, c, lease)
	if err != nil {
		return err
	}
	// The fair share is the owner's part of the shards, rounded up.
	fair := (backends.Shards + owners - 1) / owners
	if more := fair - len(lease.Shards); more > 0 && len(free) > 0 {
		if err := s.take(ctx, c, owner, free[:min(more, len(free))]); err != nil {
			return err
		}
		if _, _, err := s.holdings(ctx, c, lease); err != nil {
			return err
		}
	}
	lease.Surplus = nil
	for i := len(lease.Shards) - 1; i >= fair; i-- {
		lease.Surplus = append(lease.Surplus, lease.Shards[i].Shard)
	}
	return nil
}

// holdings lists the shards of the lease's owner, and those of nobody.
func (s *Store) holdings(ctx context.Context, c *sql.Conn, lease *backends.Lease) (owners int, free []int, err error) {
	lease.Shards = nil
	err = query(ctx, c, func(scan func(...any) error) error {
		var l backends.ShardLease
		var owner []byte
		var alive bool
		if err := scan(&l.Shard, &l.Epoch, &owner, &alive, &owners); err != nil {
			return err
		}
		switch {
		case !alive:
			free = append(free, l.Shard)
		case string(owner) == lease.Owner:
			lease.Shards = append(lease.Shards, l)
		}
		return nil
	}, `select s.shard, s.epoch, s.owner, f.owner is not null, (select count(*) from `+s.names.forwarders+`)
from `+s.names.shards+` s left join `+s.names.forwarders+` f on f.owner = s.owner order by s.shard`)
	return max(1, owners), free, err
}

// take makes free shards the owner's. One that a settle of its former owner holds
// is taken at the next heartbeat.
func (s *Store) take(ctx context.Context, c *sql.Conn, owner string, free []int) error {
	var shards []int
	err := query(ctx, c, func(scan func(...any) error) error {
		var shard int
		err := scan(&shard)
		shards = append(shards, shard)
		return err
	}, "select shard from "+s.names.shards+" where shard in ("+integers(free)+") for update skip locked")
	if err != nil || len(shards) == 0 {
		return err
	}
	_, err = c.ExecContext(ctx, "update "+s.names.shards+" set owner = "+owner+", epoch = epoch + 1 where shard in ("+integers(shards)+")")
	return err
}

// Release implements [backends.Outbox].
func (s *Store) Release(ctx context.Context, lease backends.Lease) error {
	if lease.Owner == "" {
		return errors.New("mysql: release: the lease has no owner")
	}
	text := "delete from " + s.names.forwarders + " where owner = " + literal(lease.Owner)
	if len(lease.Shards) > 0 {
		held := make([]string, len(lease.Shards))
		for i, l := range lease.Shards {
			held[i] = fmt.Sprintf("shard = %d and epoch = %d", l.Shard, l.Epoch)
		}
		text = "update " + s.names.shards + " set owner = null where owner = " + literal(lease.Owner) +
			" and (" + strings.Join(held, " or ") + ")"
	}
	err := s.write(ctx, func(c *sql.Conn) error {
		if err := s.lockLeases(ctx, c); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, text)
		return err
	})
	if err != nil {
		return fmt.Errorf("mysql: release: %w", mend(err))
	}
	return nil
}
