package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
)

// countedParked is how many aggregates one statement counts the dead letters of.
const countedParked = 100

// Parked implements [backends.DeadLetters].
func (s *Store) Parked(ctx context.Context, after string, limit int) ([]backends.ParkedAggregate, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("mysql: list parked aggregates: the limit is %d, allowed is 1 or more", limit)
	}
	var out []backends.ParkedAggregate
	err := query(ctx, s.db, func(scan func(...any) error) error {
		var aggregate, reason []byte
		var at int64
		if err := scan(&aggregate, &at, &reason); err != nil {
			return err
		}
		out = append(out, backends.ParkedAggregate{Aggregate: string(aggregate), ParkedAt: time.UnixMicro(at).UTC(), Reason: string(reason)})
		return nil
	}, fmt.Sprintf(`select aggregate, timestampdiff(microsecond, '1970-01-01', parked_at), reason from %s where aggregate > %s order by aggregate limit %d`,
		s.names.parked, literal(after), limit))
	for part := range slices.Chunk(out, countedParked) {
		if err == nil {
			err = s.countDead(ctx, part)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("mysql: list parked aggregates: %w", mend(err))
	}
	return out, nil
}

// countDead counts the dead letters of aggregates, in place.
func (s *Store) countDead(ctx context.Context, of []backends.ParkedAggregate) error {
	parts := make([]string, len(of))
	for i, p := range of {
		parts[i] = fmt.Sprintf("select %d, count(*) from (select 1 from %s where aggregate = %s limit 1000) c%d", i, s.names.dead, literal(p.Aggregate), i)
	}
	return query(ctx, s.db, func(scan func(...any) error) error {
		var i int
		var n int64
		if err := scan(&i, &n); err != nil {
			return err
		}
		of[i].Records = n
		return nil
	}, strings.Join(parts, " union all "))
}

// Dead implements [backends.DeadLetters].
func (s *Store) Dead(ctx context.Context, f backends.DeadFilter) ([]backends.DeadLetter, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 0 {
		return nil, fmt.Errorf("mysql: list dead letters: Limit is %d, allowed is 0 or more", f.Limit)
	}
	where := fmt.Sprintf("(shard > %d or shard = %d and id > %d)", f.After.Shard, f.After.Shard, f.After.ID)
	if f.Aggregate != "" {
		where += " and aggregate = " + literal(f.Aggregate)
	}
	if f.Topic != "" {
		where += " and topic = " + literal(f.Topic)
	}
	if f.MinAge > 0 {
		where += fmt.Sprintf(" and dead_at <= utc_timestamp(6) - interval %d microsecond", f.MinAge.Microseconds())
	}
	var out []backends.DeadLetter
	err := query(ctx, s.db, func(scan func(...any) error) error {
		d, err := deadLetter(scan)
		out = append(out, d)
		return err
	}, fmt.Sprintf(`select shard, id, message_id, topic, aggregate, sequence, payload, metadata,
timestampdiff(microsecond, '1970-01-01', created_at), attempts, timestampdiff(microsecond, '1970-01-01', dead_at), last_error
from %s where %s order by shard, id limit %d`, s.names.dead, where, f.Limit))
	if err != nil {
		return nil, fmt.Errorf("mysql: list dead letters: %w", mend(err))
	}
	return out, nil
}

func deadLetter(scan func(...any) error) (d backends.DeadLetter, err error) {
	var aggregate, metadata, lastError []byte
	var sequence sql.NullInt64
	var created, dead int64
	if err = scan(&d.Shard, &d.ID, &d.MessageID, &d.Topic, &aggregate, &sequence, &d.Payload, &metadata,
		&created, &d.Attempts, &dead, &lastError); err != nil {
		return d, err
	}
	d.Aggregate, d.Sequence, d.LastError = string(aggregate), sequence.Int64, string(lastError)
	d.CreatedAt, d.DeadAt = time.UnixMicro(created).UTC(), time.UnixMicro(dead).UTC()
	d.Metadata, err = decodeMetadata(metadata)
	return d, err
}

// Requeue implements [backends.DeadLetters]. An aggregate's dead letters go back
// in one transaction.
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
		return s.restore(ctx, c, thisDead(*t.Record))
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
			err = c.QueryRowContext(ctx, fmt.Sprintf(`select not exists (select 1 from %s where aggregate = %s and id < %d)`,
				s.names.dead, literal(aggregate), t.Record.ID)).Scan(&first)
			if err != nil {
				return 0, err
			}
		}
		n, err := remove(ctx, c, `delete from `+s.names.dead+thisDead(*t.Record))
		if err == nil && first {
			_, err = s.unpark(ctx, c, aggregate, true)
		}
		return n, err
	})
}

func thisDead(r backends.Ref) string {
	return fmt.Sprintf(" where shard = %d and id = %d", r.Shard, r.ID)
}

// mendDead runs an operator's change in a transaction.
func (s *Store) mendDead(ctx context.Context, what string, t backends.DeadTarget, change func(*sql.Conn) (int, error)) (n int, err error) {
	if (t.Aggregate == "") == (t.Record == nil) {
		return 0, fmt.Errorf("mysql: %s: name an aggregate or a record, not both and not neither", what)
	}
	err = s.write(ctx, func(c *sql.Conn) (err error) {
		n, err = change(c)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("mysql: %s: %w", what, mend(err))
	}
	return n, nil
}

// unpark takes an aggregate's marker away and its dead letters with it: back to
// the outbox, or for good.
//
// The marker is locked first. Readers that set records aside hold it too, so
// whatever they moved is seen by the next statement, and what they meet later
// finds no marker and stays.
func (s *Store) unpark(ctx context.Context, c *sql.Conn, aggregate string, keep bool) (int, error) {
	n, err := remove(ctx, c, `delete from `+s.names.parked+` where aggregate = `+literal(aggregate))
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("aggregate %q is not parked: %w", aggregate, backends.ErrNotFound)
	}
	where := ` where aggregate = ` + literal(aggregate)
	if keep {
		return s.restore(ctx, c, where)
	}
	return remove(ctx, c, `delete from `+s.names.dead+where)
}

// restore puts dead letters back with their ids, so that they sort before what
// has been appended since, and lets readers know. Attempts start again.
func (s *Store) restore(ctx context.Context, c *sql.Conn, where string) (int, error) {
	if _, err := c.ExecContext(ctx, `insert into `+s.names.outbox+` (`+movedColumns+`) select `+movedColumns+` from `+s.names.dead+where+` for update`); err != nil {
		return 0, err
	}
	n, err := remove(ctx, c, `delete from `+s.names.dead+where)
	if err != nil {
		return 0, err
	}
	_, err = c.ExecContext(ctx, `update `+s.names.state+` set n = n + 1 where name = 'requeues'`)
	return n, err
}

// find looks a dead letter up and locks its aggregate's marker, if there is one.
func (s *Store) find(ctx context.Context, c *sql.Conn, ref backends.Ref) (aggregate string, parked bool, err error) {
	var name []byte
	err = c.QueryRowContext(ctx, `select aggregate from `+s.names.dead+thisDead(ref)).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, fmt.Errorf("record %d of shard %d: %w", ref.ID, ref.Shard, backends.ErrNotFound)
	}
	if err != nil || name == nil {
		return "", false, err
	}
	var one int
	err = c.QueryRowContext(ctx, `select 1 from `+s.names.parked+` where aggregate = `+literal(string(name))+` for update`).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return string(name), false, nil
	}
	return string(name), err == nil, err
}

// remove runs a delete and counts.
func remove(ctx context.Context, c *sql.Conn, text string) (int, error) {
	res, err := c.ExecContext(ctx, text)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}
