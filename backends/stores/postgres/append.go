package postgres

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends/stores/internal/records"
)

// The append statements. Each is the only statement of its Publish call.
//
// The row of outbox_sequences is the lock that order within an aggregate rests
// on, so an id may only be drawn once it is held:
//
// 1. Two transactions publish for one aggregate.
// 2. The first draws its id, then waits for the second, which holds the lock and
// draws a higher id.
// 3. The lower id would carry the higher sequence.
//
// The statements therefore read the outbox's rows from the CTE that takes the
// lock: an id is drawn when a row comes out of it. For many messages the sort by
// position lies between, which lets the first row out only when all locks are
// held; they are taken in the order of the aggregates' names, so that two
// calls cannot deadlock.
func appendStatements(n names) (one, oneNumbered, many string) {
	one = `insert into ` + n.outbox + ` (shard, message_id, topic, aggregate, sequence, payload, metadata)
values ($1::int2, $2::text, $3::text, nullif($4::text, ''), nullif($5::int8, 0), $6::bytea, $7::text::json)`

	oneNumbered = `with s as (
    insert into ` + n.sequences + ` as q (topic, aggregate, last) values ($3::text, $4::text, 1)
    on conflict (topic, aggregate) do update set last = q.last + 1
    returning last)
insert into ` + n.outbox + ` (shard, message_id, topic, aggregate, sequence, payload, metadata)
select $1::int2, $2::text, $3::text, $4::text, s.last, $5::bytea, $6::text::json from s`

	many = `with input as materialized (
    select shard, message_id, nullif(aggregate, '') as aggregate, nullif(sequence, 0) as sequence, payload, metadata, n,
           $8::bool and aggregate <> '' and sequence = 0 as numbered
    from unnest($1::{t}int2[], $2::{t}text[], $3::{t}text[], $4::{t}int8[], $5::{t}bytea[], $6::{t}text[])
         with ordinality as i(shard, message_id, aggregate, sequence, payload, metadata, n)),
s as (
    insert into ` + n.sequences + ` as q (topic, aggregate, last)
    select $7::text, aggregate, count(*) from input where numbered group by aggregate order by aggregate collate "C"
    on conflict (topic, aggregate) do update set last = q.last + excluded.last
    returning aggregate, last)
insert into ` + n.outbox + ` (shard, message_id, topic, aggregate, sequence, payload, metadata)
select i.shard, i.message_id, $7::text, i.aggregate,
       case when i.numbered then s.last + 1 - row_number() over (partition by i.numbered, i.aggregate order by i.n desc) else i.sequence end,
       i.payload, i.metadata::json
from input i left join s on i.numbered and s.aggregate = i.aggregate
order by i.n`
	return one, oneNumbered, many
}

func (s *Store) append(ctx context.Context, tx pgx.Tx, rows []records.Row) error {
	stmt, args := s.stmts.many, []any(nil)
	if len(rows) == 1 {
		stmt, args = s.appendOne(rows[0])
	} else {
		args = s.appendMany(rows)
	}
	if s.cfg.Pooler {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	_, err := tx.Exec(ctx, stmt, args...)
	return s.mendAppend(err)
}

func (s *Store) appendSQL(ctx context.Context, tx SQLTx, rows []records.Row) error {
	stmt, args := s.stmts.manyText, []any(nil)
	if len(rows) == 1 {
		stmt, args = s.appendOne(rows[0])
	} else {
		args = s.appendManyText(rows)
	}
	_, err := tx.ExecContext(ctx, stmt, args...)
	return s.mendAppend(err)
}

func (s *Store) numbered(r records.Row) bool {
	return s.cfg.Sequences == On && r.Aggregate != "" && r.Sequence == 0
}

func (s *Store) appendOne(r records.Row) (stmt string, args []any) {
	if s.numbered(r) {
		return s.stmts.oneNumbered, []any{int16(r.Shard), r.MessageID, r.Topic, r.Aggregate, r.Payload, string(r.Metadata)}
	}
	return s.stmts.one, []any{int16(r.Shard), r.MessageID, r.Topic, r.Aggregate, r.Sequence, r.Payload, string(r.Metadata)}
}

func (s *Store) appendMany(rows []records.Row) []any {
	var (
		shards     = make([]int16, len(rows))
		ids        = make([]string, len(rows))
		aggregates = make([]string, len(rows))
		sequences  = make([]int64, len(rows))
		payloads   = make([][]byte, len(rows))
		metadata   = make([]string, len(rows))
	)
	for i, r := range rows {
		shards[i], ids[i], aggregates[i] = int16(r.Shard), r.MessageID, r.Aggregate
		sequences[i], payloads[i], metadata[i] = r.Sequence, r.Payload, string(r.Metadata)
	}
	return []any{shards, ids, aggregates, sequences, payloads, metadata, rows[0].Topic, s.cfg.Sequences == On}
}

// appendManyText passes arrays as text, which every database/sql driver takes.
func (s *Store) appendManyText(rows []records.Row) []any {
	var a [6]strings.Builder
	for i, r := range rows {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		for j := range a {
			a[j].WriteByte(sep)
		}
		a[0].WriteString(strconv.Itoa(r.Shard))
		quote(&a[1], r.MessageID)
		quote(&a[2], r.Aggregate)
		a[3].WriteString(strconv.FormatInt(r.Sequence, 10))
		a[4].WriteString(`"\\x`)
		_, _ = hex.NewEncoder(&a[4]).Write(r.Payload) // a builder never fails
		a[4].WriteByte('"')
		quote(&a[5], string(r.Metadata))
	}
	args := make([]any, 0, 8)
	for j := range a {
		a[j].WriteByte('}')
		args = append(args, a[j].String())
	}
	return append(args, rows[0].Topic, s.cfg.Sequences == On)
}

// quote writes an element of an array literal.
func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	for {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		b.WriteByte('\\')
		b.WriteByte(s[i])
		s = s[i+1:]
	}
	b.WriteString(s)
	b.WriteByte('"')
}
