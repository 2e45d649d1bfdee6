package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outmill/outmill/backends"
)

// Parked implements [backends.DeadLetters].
func (s *Store) Parked(ctx context.Context, after string, limit int) ([]backends.ParkedAggregate, error) {
	var out []backends.ParkedAggregate
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select p.aggregate, p.parked_at, p.reason,
    (select count(*) from (select from `+s.names.dead+` d where d.aggregate = p.aggregate limit 1000) n)
from `+s.names.parked+` p where p.aggregate > $1::text order by p.aggregate limit $2::int8`, after, limit)
		if err != nil {
			return err
		}
		var p backends.ParkedAggregate
		_, err = pgx.ForEachRow(rows, []any{&p.Aggregate, &p.ParkedAt, &p.Reason, &p.Records}, func() error {
			p.ParkedAt = p.ParkedAt.UTC()
			out = append(out, p)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("postgres: list parked aggregates: %w", mend(err))
	}
	return out, nil
}

// Dead implements [backends.DeadLetters].
func (s *Store) Dead(ctx context.Context, f backends.DeadFilter) ([]backends.DeadLetter, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	where, args := "(shard, id) > ($1::int2, $2::int8)", []any{f.After.Shard, f.After.ID, f.Limit}
	filter := func(condition string, value any) {
		args = append(args, value)
		where += fmt.Sprintf(" and "+condition, len(args))
	}
	if f.Aggregate != "" {
		filter("aggregate = $%d::text", f.Aggregate)
	}
	if f.Topic != "" {
		filter("topic = $%d::text", f.Topic)
	}
	if f.MinAge > 0 {
		filter("dead_at <= statement_timestamp() - $%d::interval", f.MinAge)
	}
	var out []backends.DeadLetter
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select shard, id, message_id, topic, aggregate, sequence, payload, metadata::text, created_at, attempts, dead_at, last_error
from `+s.names.dead+` where `+where+` order by shard, id limit $3::int8`, args...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, deadLetter)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("postgres: list dead letters: %w", mend(err))
	}
	return out, nil
}

func deadLetter(row pgx.CollectableRow) (d backends.DeadLetter, err error) {
	var aggregate, lastError pgtype.Text
	var sequence pgtype.Int8
	var metadata []byte
	if err = row.Scan(&d.Shard, &d.ID, &d.MessageID, &d.Topic, &aggregate, &sequence, &d.Payload, &metadata,
		&d.CreatedAt, &d.Attempts, &d.DeadAt, &lastError); err != nil {
		return d, err
	}
	d.Aggregate, d.Sequence, d.LastError = aggregate.String, sequence.Int64, lastError.String
	d.CreatedAt, d.DeadAt = d.CreatedAt.UTC(), d.DeadAt.UTC()
	d.Metadata, err = decodeMetadata(metadata)
	return d, err
}

// Requeue implements [backends.DeadLetters]. An aggregate's dead letters go back
// in one transaction.
func (s *Store) Requeue(ctx context.Context, target backends.DeadTarget) (int, error) {
	return s.mendDead(ctx, "requeue", target, func(tx pgx.Tx) (int64, error) {
		if target.Record == nil {
			return s.unpark(ctx, tx, target.Aggregate, true)
		}
		aggregate, parked, err := s.lockRecord(ctx, tx, *target.Record)
		if err != nil {
			return 0, err
		}
		if parked {
			return 0, fmt.Errorf("postgres: record %d of aggregate %q: %w", target.Record.ID, aggregate, backends.ErrParked)
		}
		return s.restore(ctx, tx, "shard = $1::int2 and id = $2::int8", target.Record.Shard, target.Record.ID)
	})
}

// Discard implements [backends.DeadLetters].
func (s *Store) Discard(ctx context.Context, target backends.DeadTarget) (int, error) {
	return s.mendDead(ctx, "discard", target, func(tx pgx.Tx) (int64, error) {
		if target.Record == nil {
			return s.unpark(ctx, tx, target.Aggregate, false)
		}
		aggregate, parked, err := s.lockRecord(ctx, tx, *target.Record)
		if err != nil {
			return 0, err
		}
		first := false
		if parked {
			err = tx.QueryRow(ctx, `select not exists (select from `+s.names.dead+` where aggregate = $1::text and id < $2::int8)`,
				aggregate, target.Record.ID).Scan(&first)
			if err != nil {
				return 0, err
			}
		}
		tag, err := tx.Exec(ctx, `delete from `+s.names.dead+` where shard = $1::int2 and id = $2::int8`, target.Record.Shard, target.Record.ID)
		if err != nil {
			return 0, err
		}
		if first {
			if _, err := s.unpark(ctx, tx, aggregate, true); err != nil {
				return 0, err
			}
		}
		return tag.RowsAffected(), nil
	})
}

// mendDead runs an operator's change in a transaction.
func (s *Store) mendDead(ctx context.Context, what string, t backends.DeadTarget, change func(tx pgx.Tx) (int64, error)) (int, error) {
	if (t.Aggregate == "") == (t.Record == nil) {
		return 0, fmt.Errorf("postgres: %s: name an aggregate or a record, not both and not neither", what)
	}
	var n int64
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) (err error) {
			n, err = change(tx)
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("postgres: %s: %w", what, mend(err))
	}
	return int(n), nil
}

// unpark takes an aggregate's marker away and its dead letters with it: back to
// the outbox, or for good.
//
// The marker is locked first. Readers that set records aside hold it too, so
// whatever they moved is seen by the next statement, and what they meet later
// finds no marker and stays.
func (s *Store) unpark(ctx context.Context, tx pgx.Tx, aggregate string, keep bool) (int64, error) {
	var one int
	err := tx.QueryRow(ctx, `select 1 from `+s.names.parked+` where aggregate = $1::text for update`, aggregate).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("aggregate %q is not parked: %w", aggregate, backends.ErrNotFound)
	}
	if err != nil {
		return 0, err
	}
	var n int64
	if keep {
		n, err = s.restore(ctx, tx, "aggregate = $1::text", aggregate)
	} else {
		var tag interface{ RowsAffected() int64 }
		tag, err = tx.Exec(ctx, `delete from `+s.names.dead+` where aggregate = $1::text`, aggregate)
		n = tag.RowsAffected()
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `delete from `+s.names.parked+` where aggregate = $1::text`, aggregate)
	return n, err
}

// restore puts dead letters back with their ids, so that they sort before what
// has been appended since, and under this transaction, so that readers find
// them. Attempts start again.
func (s *Store) restore(ctx context.Context, tx pgx.Tx, where string, args ...any) (int64, error) {
	tag, err := tx.Exec(ctx, `with back as (delete from `+s.names.dead+` where `+where+` returning `+movedColumns+`)
insert into `+s.names.outbox+` (`+movedColumns+`) select `+movedColumns+` from back`, args...)
	return tag.RowsAffected(), err
}

// lockRecord finds a dead letter and locks its aggregate's marker, if there is one.
func (s *Store) lockRecord(ctx context.Context, tx pgx.Tx, ref backends.Ref) (aggregate string, parked bool, err error) {
	var name pgtype.Text
	err = tx.QueryRow(ctx, `select aggregate from `+s.names.dead+` where shard = $1::int2 and id = $2::int8`, ref.Shard, ref.ID).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, fmt.Errorf("record %d of shard %d: %w", ref.ID, ref.Shard, backends.ErrNotFound)
	}
	if err != nil || !name.Valid {
		return "", false, err
	}
	var one int
	err = tx.QueryRow(ctx, `select 1 from `+s.names.parked+` where aggregate = $1::text for update`, name.String).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return name.String, false, nil
	}
	return name.String, err == nil, err
}
