package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

const movedColumns = `id, shard, message_id, topic, aggregate, sequence, payload, metadata, created_at`

// Settle implements [backends.Reader].
func (r *reader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	var delivered []any
	var others []backends.Outcome
	for i, o := range outcomes {
		switch {
		case o.Record == nil || o.Action < backends.Delivered || o.Action > backends.Release:
			return fmt.Errorf("sqlite: settle: outcome %d names no record or no known action (%d)", i, o.Action)
		case o.Action == backends.Delivered:
			delivered = append(delivered, o.Record.ID)
		case o.Action != backends.Release:
			others = append(others, o)
		}
	}
	held := map[int]bool{}
	if len(delivered)+len(others) > 0 {
		err := r.store.write(ctx, func(c *sql.Conn) error {
			if err := r.store.deliver(ctx, c, delivered); err != nil || len(others) == 0 {
				return err
			}
			if err := r.store.fence(ctx, c, lease, held); err != nil {
				return err
			}
			for _, o := range others {
				if !held[o.Record.Shard] {
					continue
				}
				if err := r.store.fail(ctx, c, o); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			r.scan.Unknown(outcomes)
			return fmt.Errorf("sqlite: settle: %w", err)
		}
	}
	if err := r.scan.Remember(outcomes, func(shard int) bool { return held[shard] }); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// deliver removes records, or moves them to the archive.
func (s *Store) deliver(ctx context.Context, c *sql.Conn, ids []any) error {
	for part := range slices.Chunk(ids, 10*chunk) {
		where := ` where id in (` + marks("?", len(part)) + `)`
		if s.cfg.Retention > 0 {
			if _, err := c.ExecContext(ctx, `insert or ignore into `+s.names.archive+` (`+movedColumns+`, delivered_at)
select `+movedColumns+`, `+now+` from `+s.names.outbox+where, part...); err != nil {
				return err
			}
		}
		if _, err := c.ExecContext(ctx, `delete from `+s.names.outbox+where, part...); err != nil {
			return err
		}
	}
	return nil
}

// fence finds the shards that are held under the lease's epochs. They stay so
// while the write lock is held.
func (s *Store) fence(ctx context.Context, c *sql.Conn, lease backends.Lease, held map[int]bool) error {
	return query(ctx, c, func(scan func(...any) error) error {
		var shard int
		var epoch int64
		if err := scan(&shard, &epoch); err != nil {
			return err
		}
		was, leased := lease.Epoch(shard)
		held[shard] = leased && was == epoch
		return nil
	}, `select shard, epoch from `+s.names.shards+` where owner = ?`, lease.Owner)
}

// fail records a failed attempt, or gives the record up.
func (s *Store) fail(ctx context.Context, c *sql.Conn, o backends.Outcome) error {
	reason, attempts := records.ErrorText(o.Err), o.Record.Attempts+1
	if o.Action == backends.Retry {
		_, err := c.ExecContext(ctx, `update `+s.names.outbox+` set attempts = ?, last_error = ?, next_attempt_at = `+now+` + ? where id = ?`,
			attempts, reason, o.After.Microseconds(), o.Record.ID)
		return err
	}
	if o.Action == backends.Park {
		if _, err := c.ExecContext(ctx, `insert into `+s.names.parked+` (aggregate, parked_at, reason)
select aggregate, `+now+`, ? from `+s.names.outbox+` where id = ? and aggregate is not null on conflict do nothing`, reason, o.Record.ID); err != nil {
			return err
		}
	}
	return s.bury(ctx, c, `id = ?3`, attempts, reason, o.Record.ID)
}

// bury moves records to the dead letters. ?1 and ?2 are attempts and reason;
// where they are nil, the record's own stand.
func (s *Store) bury(ctx context.Context, c *sql.Conn, where string, args ...any) error {
	if _, err := c.ExecContext(ctx, `insert into `+s.names.dead+` (`+movedColumns+`, attempts, last_error, dead_at)
select `+movedColumns+`, coalesce(?1, attempts), coalesce(?2, last_error), `+now+` from `+s.names.outbox+` where `+where, args...); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, `delete from `+s.names.outbox+` where ?1 is ?1 and ?2 is ?2 and `+where, args...)
	return err
}

// setAside moves records of parked aggregates to the dead letters, while they
// still are parked.
func (r *reader) setAside(ctx context.Context, refs []backends.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	return r.store.write(ctx, func(c *sql.Conn) error {
		for _, ref := range refs {
			err := r.store.bury(ctx, c, `id = ?3 and aggregate in (select aggregate from `+r.store.names.parked+`)`, nil, nil, ref.ID)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
