package mysql

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Limits of one insert. The driver and the server allow 65,535 parameters. Short
// statements also keep the time short between the drawing of an id and its row.
const (
	chunkRows  = 500
	chunkBytes = 1 << 20
)

// append writes rows. The row of outbox_sequences is the lock that order within
// an aggregate rests on, so an id may only be drawn once it is held: numbers
// come first, for all rows, in the order of the aggregates' names, so that two
// calls cannot deadlock. Several statements are made one by a savepoint, which
// leaves the caller's transaction as it was.
func (s *Store) append(ctx context.Context, tx Tx, rows []records.Row) error {
	numbers := s.count(rows)
	parts := split(rows)
	if len(numbers) == 0 && len(parts) == 1 {
		return s.insert(ctx, tx, rows)
	}
	// Not released: one of the same name takes its place, and it costs nothing.
	if _, err := tx.ExecContext(ctx, "savepoint outbox_publish"); err != nil {
		return err
	}
	err := s.number(ctx, tx, rows, numbers)
	for _, part := range parts {
		if err == nil {
			err = s.insert(ctx, tx, part)
		}
	}
	if err != nil {
		_, _ = tx.ExecContext(ctx, "rollback to savepoint outbox_publish") // the first error is the one to report
	}
	return err
}

// split cuts rows into what one statement may carry.
func split(rows []records.Row) [][]records.Row {
	var parts [][]records.Row
	from, bytes := 0, 0
	for i, r := range rows {
		size := len(r.Payload) + len(r.Metadata)
		if i > from && (i-from == chunkRows || bytes+size > chunkBytes) {
			parts = append(parts, rows[from:i])
			from, bytes = i, 0
		}
		bytes += size
	}
	return append(parts, rows[from:])
}

// count says how many numbers each aggregate needs.
func (s *Store) count(rows []records.Row) map[string]int64 {
	if s.cfg.Sequences == Off {
		return nil
	}
	n := map[string]int64{}
	for _, r := range rows {
		if r.Aggregate != "" && r.Sequence == 0 {
			n[r.Aggregate]++
		}
	}
	return n
}

// number allots sequences, in place.
func (s *Store) number(ctx context.Context, tx Tx, rows []records.Row, n map[string]int64) error {
	topic := []byte(rows[0].Topic)
	names := slices.Sorted(maps.Keys(n))
	last := make(map[string]int64, len(n))
	if len(names) == 1 {
		res, err := tx.ExecContext(ctx, `insert into `+s.names.sequences+` (topic, aggregate, last) values (?, ?, last_insert_id(?))
on duplicate key update last = last_insert_id(last + ?)`, topic, []byte(names[0]), n[names[0]], n[names[0]])
		if err != nil {
			return err
		}
		if last[names[0]], err = res.LastInsertId(); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(names, chunkRows) {
		if len(names) == 1 {
			break
		}
		if err := s.numberMany(ctx, tx, topic, part, n, last); err != nil {
			return err
		}
	}
	for i := range rows {
		if r := &rows[i]; r.Aggregate != "" && r.Sequence == 0 && n[r.Aggregate] > 0 {
			n[r.Aggregate]--
			r.Sequence = last[r.Aggregate] - n[r.Aggregate]
		}
	}
	return nil
}

// numberMany counts several aggregates on and reads what came of it. It sees its
// own change under every isolation level.
func (s *Store) numberMany(ctx context.Context, tx Tx, topic []byte, names []string, n, last map[string]int64) error {
	args := make([]any, 0, 3*len(names))
	for _, name := range names {
		args = append(args, topic, []byte(name), n[name])
	}
	if _, err := tx.ExecContext(ctx, `insert into `+s.names.sequences+` (topic, aggregate, last) values `+marks("(?, ?, ?)", len(names))+`
on duplicate key update last = last + values(last)`, args...); err != nil {
		return err
	}
	args = append(args[:0], topic)
	for _, name := range names {
		args = append(args, []byte(name))
	}
	return query(ctx, tx, func(scan func(...any) error) error {
		var name []byte
		var value int64
		if err := scan(&name, &value); err != nil {
			return err
		}
		last[string(name)] = value
		return nil
	}, `select aggregate, last from `+s.names.sequences+` where topic = ? and aggregate in (`+marks("?", len(names))+`)`, args...)
}

const rowMarks = "(?, ?, ?, nullif(?, ''), nullif(?, 0), ?, ?, utc_timestamp(6))"

func (s *Store) insert(ctx context.Context, tx Tx, rows []records.Row) error {
	args := make([]any, 0, 7*len(rows))
	for _, r := range rows {
		args = append(args, r.Shard, []byte(r.MessageID), []byte(r.Topic), []byte(r.Aggregate), r.Sequence, r.Payload, r.Metadata)
	}
	_, err := tx.ExecContext(ctx, `insert into `+s.names.outbox+` (shard, message_id, topic, aggregate, sequence, payload, metadata, created_at)
values `+marks(rowMarks, len(rows)), args...)
	return err
}

func marks(mark string, n int) string { return mark + strings.Repeat(", "+mark, n-1) }
