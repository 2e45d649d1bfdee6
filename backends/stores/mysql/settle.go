package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

const (
	movedColumns  = `shard, id, message_id, topic, aggregate, sequence, payload, metadata, created_at`
	pickedColumns = `o.shard, o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata, o.created_at`
)

// Settle implements [backends.Reader].
func (r *reader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	var delivered []*backends.Record
	var others []backends.Outcome
	for i, o := range outcomes {
		switch {
		case o.Record == nil || o.Action < backends.Delivered || o.Action > backends.Release:
			return fmt.Errorf("mysql: settle: outcome %d names no record or no known action (%d)", i, o.Action)
		case o.Action == backends.Delivered:
			delivered = append(delivered, o.Record)
		case o.Action != backends.Release:
			others = append(others, o)
		}
	}
	held := map[int]bool{}
	if err := r.store.settle(ctx, lease, delivered, others, held); err != nil {
		r.scan.Unknown(outcomes)
		r.floors.reset()
		return fmt.Errorf("mysql: settle: %w", mend(err))
	}
	if err := r.scan.Remember(outcomes, func(shard int) bool { return held[shard] }); err != nil {
		return fmt.Errorf("mysql: %w", err)
	}
	return nil
}

// settle records outcomes in one transaction. Deliveries alone are one statement,
// which leaves nothing locked however this program fares.
func (s *Store) settle(ctx context.Context, lease backends.Lease, delivered []*backends.Record, others []backends.Outcome, held map[int]bool) error {
	switch {
	case len(delivered)+len(others) == 0:
		return nil
	case len(others) == 0 && s.cfg.Retention == 0:
		return s.deleteAlone(ctx, s.pick(delivered...))
	}
	return s.write(ctx, func(c *sql.Conn) error {
		clear(held)
		if len(delivered) > 0 {
			if err := s.deliver(ctx, c, s.pick(delivered...)); err != nil {
				return err
			}
		}
		if len(others) == 0 {
			return nil
		}
		if err := s.fence(ctx, c, lease, others, held); err != nil {
			return err
		}
		for _, o := range others {
			if !held[o.Record.Shard] {
				continue
			}
			if err := s.fail(ctx, c, o); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) deleteAlone(ctx context.Context, p picked) error {
	for try := 1; ; try++ {
		err := s.deleteOnce(ctx, p)
		if try == deadlockTries || !numbered(err, errDeadlock) {
			return err
		}
	}
}

func (s *Store) deleteOnce(ctx context.Context, p picked) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, readCommitted); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, p.remove())
	return err
}

// deliver removes records, or moves them to the archive.
func (s *Store) deliver(ctx context.Context, c *sql.Conn, p picked) error {
	if s.cfg.Retention > 0 {
		if _, err := c.ExecContext(ctx, "insert ignore into "+s.names.archive+" ("+movedColumns+", delivered_at) select "+pickedColumns+
			", utc_timestamp(6) from"+p.from+p.where); err != nil {
			return err
		}
	}
	_, err := c.ExecContext(ctx, p.remove())
	return err
}

// fence finds the shards that are held under the lease's epochs, and keeps them
// so until the transaction ends.
func (s *Store) fence(ctx context.Context, c *sql.Conn, lease backends.Lease, others []backends.Outcome, held map[int]bool) error {
	var shards []int
	for _, o := range others {
		shards = append(shards, o.Record.Shard)
	}
	slices.Sort(shards)
	return query(ctx, c, func(scan func(...any) error) error {
		var l backends.ShardLease
		var owner []byte
		if err := scan(&l.Shard, &l.Epoch, &owner); err != nil {
			return err
		}
		was, leased := lease.Epoch(l.Shard)
		held[l.Shard] = leased && was == l.Epoch && string(owner) == lease.Owner
		return nil
	}, "select shard, epoch, owner from "+s.names.shards+" force index (primary) where shard in ("+integers(slices.Compact(shards))+") order by shard lock in share mode")
}

// fail records a failed attempt, or gives the record up.
func (s *Store) fail(ctx context.Context, c *sql.Conn, o backends.Outcome) error {
	reason, attempts := []byte(records.ErrorText(o.Err)), o.Record.Attempts+1
	p := s.pick(o.Record)
	if o.Action == backends.Retry {
		_, err := c.ExecContext(ctx, `update`+p.from+` set o.attempts = ?, o.last_error = ?, o.next_attempt_at = utc_timestamp(6) + interval ? microsecond`+p.where,
			attempts, reason, o.After.Microseconds())
		return err
	}
	if o.Action == backends.Park {
		// An existing marker is locked too, so that no requeue comes between.
		if _, err := c.ExecContext(ctx, `insert into `+s.names.parked+` (aggregate, parked_at, reason)
select o.aggregate, utc_timestamp(6), ? from`+p.from+p.where+` and o.aggregate is not null
on duplicate key update reason = `+s.names.parked+`.reason`, reason); err != nil {
			return err
		}
	}
	return s.bury(ctx, c, p, attempts, reason)
}

// bury moves records to the dead letters. Where attempts and reason are nil, the
// record's own stand.
func (s *Store) bury(ctx context.Context, c *sql.Conn, p picked, attempts, reason any) error {
	if _, err := c.ExecContext(ctx, `insert into `+s.names.dead+` (`+movedColumns+`, attempts, last_error, dead_at)
select `+pickedColumns+`, coalesce(?, o.attempts), coalesce(?, o.last_error), utc_timestamp(6) from`+p.from+p.where,
		attempts, reason); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, p.remove())
	return err
}
