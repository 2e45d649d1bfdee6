package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// reader reads each shard from its floor, below which nothing waits and nothing
// can become visible. A floor is the shard's start unless scans get slow; see
// floor.go.
type reader struct {
	store    *Store
	scan     *scan.State
	floors   floors
	requeues int64 // as last seen: requeued rows keep their old ids
	snapshot *sql.Tx
}

// Reader implements [backends.Outbox].
func (s *Store) Reader() backends.Reader {
	return &reader{store: s, scan: scan.New(), requeues: -1, floors: floors{pause: settleDown}}
}

// Read implements [backends.Reader]. All statements of a read see one snapshot:
//
// 1. Two transactions append for one aggregate, one after the other: ids 5 and 9.
// 2. A statement that reads up to id 7 does not see 5 yet. Both commit.
// 3. A statement with a newer snapshot that goes on from 7 would find 9 alone.
//
// The statements take no lock.
func (r *reader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if want.Limit <= 0 {
		return nil, fmt.Errorf("mysql: read: Limit is %d, allowed is 1 or more", want.Limit)
	}
	out, moved, err := r.read(ctx, lease, want)
	for range mostMoves {
		if err != nil || len(out) > 0 || !moved {
			break
		}
		out, moved, err = r.read(ctx, lease, want) // what was in the way is gone
	}
	if err != nil {
		// A server that crashed may hand ids out again that it had not written yet.
		r.floors.reset()
		return nil, fmt.Errorf("mysql: read: %w", mend(err))
	}
	return out, nil
}

// mostMoves is how often one Read begins again after it has only met records of
// parked aggregates.
const mostMoves = 100

// read reads once, and moves what it meets of parked aggregates.
func (r *reader) read(ctx context.Context, lease backends.Lease, want backends.Want) (out []backends.Record, moved bool, err error) {
	now := time.Now()
	r.floors.own(lease)
	if err := r.probe(ctx, lease, now); err != nil {
		return nil, false, err
	}
	r.scan.Begin(lease, want.SkipTopics, now)
	for _, l := range lease.Shards {
		r.scan.Lower(l.Shard, r.floors.safe[l.Shard])
	}
	r.scan.SafetyNet(now)
	var parked []*backends.Record
	out, err = r.inSnapshot(ctx, func() ([]backends.Record, error) {
		return r.scan.Fill(ctx, lease, want, func(ctx context.Context, lease backends.Lease, want backends.Want) (scan.Result, error) {
			got, met, err := r.round(ctx, lease, want)
			parked = append(parked, met...)
			got.More = got.More && len(parked) == 0 // they would be met again
			return got, err
		})
	})
	if err != nil {
		return nil, false, err
	}
	r.floors.advance()
	r.store.marks.saw(r.floors.top, now)
	moved, err = r.setAside(ctx, parked)
	return out, moved, err
}

// inSnapshot runs statements that see one state of the database.
func (r *reader) inSnapshot(ctx context.Context, do func() ([]backends.Record, error)) ([]backends.Record, error) {
	tx, err := r.store.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	r.snapshot = tx
	defer func() { r.snapshot = nil }()
	var requeues int64
	filled, began := true, time.Now()
	err = tx.QueryRowContext(ctx, "select n, "+r.any()+" from "+r.store.names.state+" where name = 'requeues'").Scan(&requeues, &filled)
	if err != nil {
		return nil, err
	}
	if requeues != r.requeues {
		r.scan.Forget()
		r.floors.reset()
		r.requeues = requeues
	}
	if !filled {
		r.floors.timed(time.Since(began), 0)
		return nil, tx.Commit()
	}
	out, err := do()
	if err != nil {
		return nil, err
	}
	return out, tx.Commit()
}

// any asks whether the table holds a row at all, which is the cheapest question
// where it is empty. Not so where it is full of settled rows.
func (r *reader) any() string {
	if r.floors.active {
		return "true"
	}
	return r.store.filled()
}

// union is how many shards one statement reads.
const union = 16

// round reads once, and names what it met of parked aggregates. Shards read to
// their end in this snapshot hold nothing more.
func (r *reader) round(ctx context.Context, lease backends.Lease, want backends.Want) (got scan.Result, parked []*backends.Record, err error) {
	asks := r.scan.Allot(lease, want)
	found := scan.NewFound(want.Limit, want.MaxBytes)
	skip := r.skips(want)
	var parts []string
	began := time.Now()
	for i, a := range asks {
		if a.Cut != scan.ToEnd {
			parts = append(parts, r.part(a, skip))
		}
		if len(parts) == union || i == len(asks)-1 && len(parts) > 0 {
			if err := query(ctx, r.snapshot, r.take(found), strings.Join(parts, "\nunion all\n")); err != nil {
				return scan.Result{}, nil, err
			}
			parts = parts[:0]
		}
	}
	r.floors.timed(time.Since(began), len(found.Rows))
	for i := range found.Rows {
		row := &found.Rows[i]
		r.floors.saw(row.Ref)
		if row.Parked {
			parked = append(parked, &row.Record)
		}
	}
	return r.scan.Adopt(asks, found, time.Now()), parked, nil
}

// skips is the condition that leaves out what is held back.
func (r *reader) skips(want backends.Want) string {
	skip := ""
	if held := r.scan.SkipAggregates(); len(held) > 0 {
		skip += " and (o.aggregate is null or o.aggregate not in (" + literals(held) + "))"
	}
	if len(want.SkipTopics) > 0 {
		skip += " and o.topic not in (" + literals(want.SkipTopics) + ")"
	}
	return skip
}

// part reads one shard onward. Texts hold numbers and hexadecimal literals only,
// so no statement needs preparing and every sql_mode reads them alike.
func (r *reader) part(a scan.Ask, skip string) string {
	return fmt.Sprintf(`(select o.shard, o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata,
timestampdiff(microsecond, '1970-01-01', o.created_at), o.attempts,
coalesce(timestampdiff(microsecond, utc_timestamp(6), o.next_attempt_at), 0), timestampdiff(microsecond, o.created_at, utc_timestamp(6)),
o.aggregate is not null and exists (select 1 from %s p where p.aggregate = o.aggregate)
from %s o force index (primary) where o.shard = %d and o.id > %d%s order by o.id limit %d)`,
		r.store.names.parked, r.store.names.outbox, a.Shard, a.Cut, skip, a.Limit)
}

// take reads a row. Of one that is dropped only the place is kept.
func (r *reader) take(found *scan.Found) func(scan func(...any) error) error {
	var messageID, topic, aggregate, payload, metadata sql.RawBytes
	var sequence sql.NullInt64
	var created, wait, age int64
	return func(scanRow func(...any) error) error {
		var row scan.Row
		if err := scanRow(&row.Shard, &row.ID, &messageID, &topic, &aggregate, &sequence, &payload, &metadata,
			&created, &row.Attempts, &wait, &age, &row.Parked); err != nil {
			return err
		}
		if row.Drop = found.Full(); !row.Drop {
			md, err := decodeMetadata(metadata)
			if err != nil {
				return fmt.Errorf("record %d of shard %d: %w", row.ID, row.Shard, err)
			}
			row.Metadata = md
			row.Payload = append(make([]byte, 0, len(payload)), payload...)
		}
		row.MessageID, row.Topic, row.Aggregate = string(messageID), string(topic), string(aggregate)
		row.Sequence = sequence.Int64
		row.CreatedAt = time.UnixMicro(created).UTC()
		row.Wait = time.Duration(wait) * time.Microsecond
		row.Age = max(0, time.Duration(age)*time.Microsecond)
		found.Add(row)
		return nil
	}
}

// decodeMetadata also reads what something else than a publisher wrote: what is
// no string is kept as its JSON text. One odd row must not stop the others.
func decodeMetadata(metadata []byte) (message.Metadata, error) {
	if md, err := records.DecodeMetadata(metadata); err == nil {
		return md, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(metadata, &values); err != nil {
		return nil, errors.New("the metadata is not a JSON object")
	}
	md := make(message.Metadata, len(values))
	for k, v := range values {
		var s string
		if json.Unmarshal(v, &s) != nil || string(v) == "null" {
			s = string(v)
		}
		md[k] = s
	}
	return md, nil
}
