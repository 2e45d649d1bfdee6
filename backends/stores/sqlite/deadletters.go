package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Parked implements [backends.DeadLetters].
func (s *Store) Parked(ctx context.Context, after string, limit int) ([]backends.ParkedAggregate, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("sqlite: list parked aggregates: the limit is %d, allowed is 1 or more", limit)
	}
	var out []backends.ParkedAggregate
	err := query(ctx, s.reads, func(scan func(...any) error) error {
		var p backends.ParkedAggregate
		var at int64
		if err := scan(&p.Aggregate, &at, &p.Reason, &p.Records); err != nil {
			return err
		}
		p.ParkedAt = time.UnixMicro(at).UTC()
		out = append(out, p)
		return nil
	}, `select aggregate, parked_at, reason,
    (select count(*) from (select 1 from `+s.names.dead+` d where d.aggregate = p.aggregate limit 1000))
from `+s.names.parked+` p where aggregate > ? order by aggregate limit ?`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("sqlite: list parked aggregates: %w", mend(err))
	}
	return out, nil
}

// Dead implements [backends.DeadLetters].
func (s *Store) Dead(ctx context.Context, f backends.DeadFilter) ([]backends.DeadLetter, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 0 {
		return nil, fmt.Errorf("sqlite: list dead letters: Limit is %d, allowed is 0 or more", f.Limit)
	}
	var out []backends.DeadLetter
	err := query(ctx, s.reads, func(scan func(...any) error) error {
		var d backends.DeadLetter
		var aggregate, lastError sql.NullString
		var sequence sql.NullInt64
		var metadata []byte
		var created, dead int64
		err := scan(&d.ID, &d.Shard, &d.MessageID, &d.Topic, &aggregate, &sequence, &d.Payload, &metadata, &created, &d.Attempts, &dead, &lastError)
		if err != nil {
			return err
		}
		d.Aggregate, d.Sequence, d.LastError = aggregate.String, sequence.Int64, lastError.String
		d.CreatedAt, d.DeadAt = time.UnixMicro(created).UTC(), time.UnixMicro(dead).UTC()
		d.Metadata, err = records.DecodeMetadata(metadata)
		out = append(out, d)
		return err
	}, `select `+movedColumns+`, attempts, dead_at, last_error from `+s.names.dead+`
where (shard, id) > (?1, ?2) and (?3 = '' or aggregate = ?3) and (?4 = '' or topic = ?4)
  and (?5 = 0 or dead_at <= `+now+` - ?5) order by shard, id limit ?6`,
		f.After.Shard, f.After.ID, f.Aggregate, f.Topic, f.MinAge.Microseconds(), f.Limit)
	if err != nil {
		return nil, fmt.Errorf("sqlite: list dead letters: %w", mend(err))
	}
	return out, nil
}

// Requeue implements [backends.DeadLetters].
func (s *Store) Requeue(ctx context.Context, t backends.DeadTarget) (int, error) {
	return s.mendDead(ctx, "requeue", t, func(c *sql.Conn) (int, error) {
		if t.Record == nil {
			return s.unpark(ctx, c, t.Aggregate, true)
		}
		_, parked, err := s.find(ctx, c, *t.Record)
		if err != nil {
			return 0, err
		}
		if parked {
			return 0, fmt.Errorf("record %d: %w", t.Record.ID, backends.ErrParked)
		}
		return s.restore(ctx, c, "id = ?", t.Record.ID)
	})
}

// Discard implements [backends.DeadLetters].
func (s *Store) Discard(ctx context.Context, t backends.DeadTarget) (int, error) {
	return s.mendDead(ctx, "discard", t, func(c *sql.Conn) (int, error) {
		if t.Record == nil {
			return s.unpark(ctx, c, t.Aggregate, false)
		}
		aggregate, parked, err := s.find(ctx, c, *t.Record)
		if err != nil {
			return 0, err
		}
		first := false
		if parked {
			err = c.QueryRowContext(ctx, `select not exists (select 1 from `+s.names.dead+` where aggregate = ? and id < ?)`,
				aggregate, t.Record.ID).Scan(&first)
			if err != nil {
				return 0, err
			}
		}
		if _, err := c.ExecContext(ctx, `delete from `+s.names.dead+` where id = ?`, t.Record.ID); err != nil {
			return 0, err
		}
		if first {
			_, err = s.unpark(ctx, c, aggregate, true)
		}
		return 1, err
	})
}

// mendDead runs an operator's change in a transaction.
func (s *Store) mendDead(ctx context.Context, what string, t backends.DeadTarget, change func(*sql.Conn) (int, error)) (n int, err error) {
	if (t.Aggregate == "") == (t.Record == nil) {
		return 0, fmt.Errorf("sqlite: %s: name an aggregate or a record, not both and not neither", what)
	}
	err = s.write(ctx, func(c *sql.Conn) (err error) {
		n, err = change(c)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sqlite: %s: %w", what, err)
	}
	return n, nil
}

// unpark takes an aggregate's marker away and its dead letters with it: back to
// the outbox, or for good.
func (s *Store) unpark(ctx context.Context, c *sql.Conn, aggregate string, keep bool) (int, error) {
	res, err := c.ExecContext(ctx, `delete from `+s.names.parked+` where aggregate = ?`, aggregate)
	if err != nil {
		return 0, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return 0, errors.Join(err, fmt.Errorf("aggregate %q is not parked: %w", aggregate, backends.ErrNotFound))
	}
	if keep {
		return s.restore(ctx, c, "aggregate = ?", aggregate)
	}
	res, err = c.ExecContext(ctx, `delete from `+s.names.dead+` where aggregate = ?`, aggregate)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// restore puts dead letters back with their ids, so that they sort before what
// has been appended since, and lets readers know. Attempts start again.
func (s *Store) restore(ctx context.Context, c *sql.Conn, where string, arg any) (int, error) {
	res, err := c.ExecContext(ctx, `insert into `+s.names.outbox+` (`+movedColumns+`) select `+movedColumns+` from `+s.names.dead+` where `+where, arg)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, err
	}
	if _, err := c.ExecContext(ctx, `delete from `+s.names.dead+` where `+where, arg); err != nil {
		return 0, err
	}
	_, err = c.ExecContext(ctx, `update `+s.names.changes+` set n = n + 1`)
	return int(n), err
}

// find looks a dead letter up, and whether its aggregate is parked.
func (s *Store) find(ctx context.Context, c *sql.Conn, ref backends.Ref) (aggregate string, parked bool, err error) {
	var name sql.NullString
	err = c.QueryRowContext(ctx, `select aggregate, aggregate is not null and exists (select 1 from `+s.names.parked+` p where p.aggregate = d.aggregate)
from `+s.names.dead+` d where shard = ? and id = ?`, ref.Shard, ref.ID).Scan(&name, &parked)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, fmt.Errorf("record %d of shard %d: %w", ref.ID, ref.Shard, backends.ErrNotFound)
	}
	return name.String, parked, err
}
