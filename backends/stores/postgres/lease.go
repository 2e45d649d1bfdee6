package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

// A shard belongs to an owner for as long as the owner's row in
// outbox_forwarders lasts, so a heartbeat writes one row, not 64. Heartbeats of
// all owners are serialised by a transaction's advisory lock, which makes this
// right:
//
// 1. A's term ends. B's heartbeat sees it, deletes A's row and takes A's
// shards, raising their epochs.
// 2. A's heartbeat, which was waiting for the lock, now finds its row gone and
// the shards B's.
//
// Without the lock, A could revive its row after B had looked and before B took
// the shards, and both would hold them.
type leaseStatements struct {
	lock, alive, expire, take, list, release, leave string
}

func newLeaseStatements(n names) leaseStatements {
	return leaseStatements{
		// The limit frees the lock where a heartbeat was cut off half way.
		lock:   `select set_config('idle_in_transaction_session_timeout', '10s', true), pg_advisory_xact_lock(hashtextextended($1::text, 2))`,
		expire: `delete from ` + n.forwarders + ` where expires_at <= clock_timestamp() and owner <> $1::text`,
		alive: `insert into ` + n.forwarders + ` (owner, expires_at) values ($1::text, clock_timestamp() + $2::interval)
on conflict (owner) do update set expires_at = excluded.expires_at`,
		// The fair share is the owner's part of the shards, rounded up. A shard that
		// a settle of its former owner holds is taken at the next heartbeat.
		take: `update ` + n.shards + ` set owner = $1::text, epoch = epoch + 1 where shard in (
    select s.shard from ` + n.shards + ` s left join ` + n.forwarders + ` f on f.owner = s.owner
    where f.owner is null order by s.shard limit greatest(0,
        (select (count(*) + (select count(*) from ` + n.forwarders + `) - 1) / (select count(*) from ` + n.forwarders + `) from ` + n.shards + `)
        - (select count(*) from ` + n.shards + ` where owner = $1::text))
    for update of s skip locked)`,
		list: `select shard, epoch, (select count(*) from ` + n.forwarders + `) from ` + n.shards + `
where owner = $1::text order by shard`,
		release: `update ` + n.shards + ` s set owner = null from unnest($2::int2[], $3::int8[]) as t(shard, epoch)
where s.shard = t.shard and s.epoch = t.epoch and s.owner = $1::text`,
		leave: `delete from ` + n.forwarders + ` where owner = $1::text`,
	}
}

// Lease implements [backends.Outbox].
func (s *Store) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if owner == "" || ttl <= 0 {
		return backends.Lease{}, fmt.Errorf("postgres: a lease needs an owner and a term above 0, got %q and %v", owner, ttl)
	}
	lease := backends.Lease{Owner: owner, Deadline: time.Now().Add(ttl)}
	owners := 1
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			b.Queue(s.stmts.lease.lock, s.names.lock)
			b.Queue(s.stmts.lease.expire, owner)
			b.Queue(s.stmts.lease.alive, owner, ttl)
			b.Queue(s.stmts.lease.take, owner)
			b.Queue(s.stmts.lease.list, owner).Query(func(rows pgx.Rows) error {
				var shard backends.ShardLease
				_, err := pgx.ForEachRow(rows, []any{&shard.Shard, &shard.Epoch, &owners}, func() error {
					lease.Shards = append(lease.Shards, shard)
					return nil
				})
				return err
			})
		})
	})
	if err != nil {
		return backends.Lease{}, fmt.Errorf("postgres: lease: %w", mend(err))
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
		return errors.New("postgres: release: the lease has no owner")
	}
	shards, epochs := split(lease)
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			b.Queue(s.stmts.lease.lock, s.names.lock)
			if len(shards) == 0 {
				b.Queue(s.stmts.lease.leave, lease.Owner)
				return
			}
			b.Queue(s.stmts.lease.release, lease.Owner, shards, epochs)
		})
	})
	if err != nil {
		return fmt.Errorf("postgres: release: %w", mend(err))
	}
	return nil
}

func split(lease backends.Lease) (shards []int16, epochs []int64) {
	for _, s := range lease.Shards {
		shards = append(shards, int16(s.Shard))
		epochs = append(epochs, s.Epoch)
	}
	return shards, epochs
}
