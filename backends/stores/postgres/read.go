package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

// readStatement finds what to send. Rows of kind 0 carry the snapshot and the
// token, of kind 1 where a shard must be read from on account of transactions
// that have become visible since the last read, of kind 2 records.
//
// One statement has one snapshot: what f says of the new transactions and what
// the scan sees belong together. A row visible now and not at the last read has
// a transaction at or above that snapshot's xmax, or one that was in progress in
// it. Nothing filters f by shard: that invites a scan of the primary key.
func readStatement(n names) string {
	return `with h as materialized (
    select pg_current_snapshot() as snap, clock_timestamp() as now, (select token from ` + n.incarnation + `) as token),
f as materialized (
    select shard, min(id) - 1 as lo from (
        select shard, id from ` + n.outbox + ` where xid >= $1::text::xid8 and xid < (select pg_snapshot_xmax(snap) from h)
        union all
        select shard, id from ` + n.outbox + ` where xid = any(array(
            select x from unnest($2::text[]::xid8[]) x where pg_visible_in_snapshot(x, (select snap from h))))) fresh
    group by shard)
select 0 as kind, 0::int2 as shard, 0::int8 as id, token::text as message_id, snap::text as topic, null::text as aggregate,
       null::int8 as sequence, null::bytea as payload, null::text as metadata, now as created_at, 0 as attempts,
       null::float8 as wait, false as parked from h
union all
select 1, shard, lo, null, null, null, null, null, null, null, 0, null, false from f
union all
select 2, o.shard, o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata::text, o.created_at, o.attempts,
       extract(epoch from o.next_attempt_at - (select now from h))::float8,
       o.aggregate is not null and exists (select from ` + n.parked + ` p where p.aggregate = o.aggregate)
from (
    select t.shard, t.lim, least(t.cut, f.lo) as lo
    from unnest($3::int2[], $4::int8[], $5::int4[]) as t(shard, cut, lim) left join f using (shard)) t,
lateral (
    select * from ` + n.outbox + ` o where o.shard = t.shard and o.id > t.lo
      and (o.aggregate is null or o.aggregate <> all($6::text[])) and o.topic <> all($7::text[])
    order by o.id limit t.lim) o
where t.lo < 9223372036854775807`
}

type reader struct {
	store *Store
	scan  *scan
}

// Reader implements [backends.Outbox].
func (s *Store) Reader() backends.Reader { return &reader{store: s, scan: newScan()} }

// maxRounds limits how many statements one Read may use to fill its batch.
const maxRounds = 2 * backends.Shards

// Read implements [backends.Reader].
func (r *reader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if want.Limit <= 0 {
		return nil, fmt.Errorf("postgres: read: Limit is %d, allowed is 1 or more", want.Limit)
	}
	now := time.Now()
	r.scan.own(lease)
	r.scan.release()
	r.scan.expire(now, want.SkipTopics)
	r.scan.safetyNet(now)
	if len(r.scan.owned) == 0 {
		return nil, nil
	}
	var out []backends.Record
	left := want
	for range maxRounds {
		got, err := r.round(ctx, lease, left)
		if err == nil {
			err = r.setAside(ctx, got.parked)
		}
		if err != nil {
			// What earlier rounds returned is in hand and is released by the next Read.
			return nil, fmt.Errorf("postgres: read: %w", mend(err))
		}
		for _, rec := range got.records {
			r.scan.hand[rec.Ref] = struct{}{}
			left.MaxBytes -= len(rec.Payload)
		}
		out = append(out, got.records...)
		left.Limit = want.Limit - len(out)
		if !got.more || enough(len(out), want.Limit) || want.MaxBytes > 0 && left.MaxBytes <= 0 {
			break
		}
		if want.MaxBytes <= 0 {
			left.MaxBytes = 0
		}
	}
	return out, nil
}

// enough reports whether a batch is worth publishing: another statement for the
// last few records would cost more than it brings. Small batches are filled.
func enough(n, limit int) bool { return n >= limit || limit >= 4*backends.Shards && n >= limit*3/4 }

// answer is what one statement found.
type answer struct {
	records []backends.Record
	parked  []backends.Ref // of parked aggregates, to be set aside
	more    bool           // a shard has not been read to its end
}

// round reads once. It changes the scan only when the whole answer is in.
func (r *reader) round(ctx context.Context, lease backends.Lease, want backends.Want) (answer, error) {
	q := r.ask(lease, want)
	a := newArrivals(r.scan, q)
	err := r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginRead, func(b *pgx.Batch) {
			b.Queue(planGuards)
			b.Queue(r.store.stmts.read, q.xmax, q.xip, q.shards, q.cuts, q.limits, q.skip, q.skipTopics).Query(a.take)
		})
	})
	if err != nil {
		return answer{}, err
	}
	if a.token == "" || a.token != q.token && q.token != "" {
		return r.startAfresh(ctx, a.token)
	}
	return r.adopt(q, a), nil
}

// startAfresh forgets everything after a crash or a promotion, and makes the
// token that tells the next one.
func (r *reader) startAfresh(ctx context.Context, token string) (answer, error) {
	r.scan.forget()
	if token != "" {
		r.scan.token = token
		return answer{more: true}, nil
	}
	err := r.store.conns.with(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, r.store.stmts.newToken); err != nil {
			return err
		}
		return c.QueryRow(ctx, r.store.stmts.token).Scan(&r.scan.token)
	})
	return answer{more: true}, err
}
