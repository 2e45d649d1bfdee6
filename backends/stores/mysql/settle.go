package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

const movedColumns = `shard, id, message_id, topic, aggregate, sequence, payload, metadata, created_at`

// Settle implements [backends.Reader].
func (r *reader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	var delivered []backends.Ref
	var others []backends.Outcome
	var newest time.Time
	for i, o := range outcomes {
		switch {
		case o.Record == nil || o.Action < backends.Delivered || o.Action > backends.Release:
			return fmt.Errorf("mysql: settle: outcome %d names no record or no known action (%d)", i, o.Action)
		case o.Action == backends.Delivered:
			delivered = append(delivered, o.Record.Ref)
		case o.Action != backends.Release:
			others = append(others, o)
		}
		if o.Record.CreatedAt.After(newest) {
			newest = o.Record.CreatedAt
		}
	}
	held := map[int]bool{}
	if err := r.store.settle(ctx, lease, delivered, others, newest, held); err != nil {
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
func (s *Store) settle(ctx context.Context, lease backends.Lease, delivered []backends.Ref, others []backends.Outcome, newest time.Time, held map[int]bool) error {
	where := these(delivered, newest)
	switch {
	case len(delivered)+len(others) == 0:
		return nil
	case len(others) == 0 && s.cfg.Retention == 0:
		return s.deleteAlone(ctx, where)
	}
	return s.write(ctx, func(c *sql.Conn) error {
		clear(held)
		if len(delivered) > 0 {
			if err := s.deliver(ctx, c, where); err != nil {
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
			if err := s.fail(ctx, c, o, newest); err != nil {
				return err
			}
		}
		return nil
	})
}

// these is the condition that names records, shard by shard, ascending. Nothing
// that was made later than the newest of them can be meant: after a crash, ids
// that had not reached the disk are handed out again.
func these(refs []backends.Ref, newest time.Time) string {
	byShard := map[int][]int64{}
	for _, ref := range refs {
		byShard[ref.Shard] = append(byShard[ref.Shard], ref.ID)
	}
	parts := make([]string, 0, len(byShard))
	for _, shard := range slices.Sorted(maps.Keys(byShard)) {
		ids := byShard[shard]
		slices.Sort(ids)
		parts = append(parts, fmt.Sprintf("shard = %d and id in (%s)", shard, integers(ids)))
	}
	return " where (" + strings.Join(parts, " or ") + ") and created_at <= '" + newest.UTC().Format("2006-01-02 15:04:05.999999") + "'"
}

func (s *Store) deleteAlone(ctx context.Context, where string) error {
	for try := 1; ; try++ {
		err := s.deleteOnce(ctx, where)
		if try == deadlockTries || !numbered(err, errDeadlock) {
			return err
		}
	}
}

func (s *Store) deleteOnce(ctx context.Context, where string) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, readCommitted); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "delete from "+s.names.outbox+where)
	return err
}

// deliver removes records, or moves them to the archive.
func (s *Store) deliver(ctx context.Context, c *sql.Conn, where string) error {
	if s.cfg.Retention > 0 {
		if _, err := c.ExecContext(ctx, "insert ignore into "+s.names.archive+" ("+movedColumns+", delivered_at) select "+movedColumns+
			", utc_timestamp(6) from "+s.names.outbox+where+" for update"); err != nil {
			return err
		}
	}
	_, err := c.ExecContext(ctx, "delete from "+s.names.outbox+where)
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
	}, "select shard, epoch, owner from "+s.names.shards+" where shard in ("+integers(slices.Compact(shards))+") order by shard lock in share mode")
}

// fail records a failed attempt, or gives the record up.
func (s *Store) fail(ctx context.Context, c *sql.Conn, o backends.Outcome, newest time.Time) error {
	reason, attempts := []byte(records.ErrorText(o.Err)), o.Record.Attempts+1
	where := these([]backends.Ref{o.Record.Ref}, newest)
	if o.Action == backends.Retry {
		_, err := c.ExecContext(ctx, `update `+s.names.outbox+` set attempts = ?, last_error = ?, next_attempt_at = utc_timestamp(6) + interval ? microsecond`+where,
			attempts, reason, o.After.Microseconds())
		return err
	}
	if o.Action == backends.Park {
		// An existing marker is locked too, so that no requeue comes between.
		if _, err := c.ExecContext(ctx, `insert into `+s.names.parked+` (aggregate, parked_at, reason)
select aggregate, utc_timestamp(6), ? from `+s.names.outbox+where+` and aggregate is not null
on duplicate key update reason = `+s.names.parked+`.reason`, reason); err != nil {
			return err
		}
	}
	_, err := s.bury(ctx, c, where, attempts, reason)
	return err
}

// bury moves records to the dead letters. Where attempts and reason are nil, the
// record's own stand.
func (s *Store) bury(ctx context.Context, c *sql.Conn, where string, attempts, reason any) (int, error) {
	if _, err := c.ExecContext(ctx, `insert into `+s.names.dead+` (`+movedColumns+`, attempts, last_error, dead_at)
select `+movedColumns+`, coalesce(?, attempts), coalesce(?, last_error), utc_timestamp(6) from `+s.names.outbox+where+` for update`,
		attempts, reason); err != nil {
		return 0, err
	}
	res, err := c.ExecContext(ctx, `delete from `+s.names.outbox+where)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// setAside moves records of parked aggregates to the dead letters.
//
// 1. A reader meets a record of a parked aggregate.
// 2. Someone requeues the aggregate: its marker goes.
// 3. Moved now, the record would be stranded. So the marker is locked, and what
// has none any more, or one that is being taken away, stays.
func (r *reader) setAside(ctx context.Context, refs []backends.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	s := r.store
	where := these(refs, time.Now().AddDate(100, 0, 0))
	return s.write(ctx, func(c *sql.Conn) error {
		var marked []string
		err := query(ctx, c, func(scan func(...any) error) error {
			var aggregate []byte
			err := scan(&aggregate)
			marked = append(marked, string(aggregate))
			return err
		}, "select aggregate from "+s.names.parked+" where aggregate in (select aggregate from "+s.names.outbox+where+") order by aggregate")
		if err != nil || len(marked) == 0 {
			return err
		}
		var locked []string
		err = query(ctx, c, func(scan func(...any) error) error {
			var aggregate []byte
			err := scan(&aggregate)
			locked = append(locked, string(aggregate))
			return err
		}, "select aggregate from "+s.names.parked+" where aggregate in ("+literals(marked)+") order by aggregate for update skip locked")
		if err != nil || len(locked) == 0 {
			return err
		}
		_, err = s.bury(ctx, c, where+" and aggregate in ("+literals(locked)+")", nil, nil)
		return err
	})
}
