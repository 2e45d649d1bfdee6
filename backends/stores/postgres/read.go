package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/scan"
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
select 2, shard, id, message_id, topic, aggregate, sequence, case when bytes - octet_length(payload) < $8::int8 then payload end,
       metadata::text, created_at, attempts, extract(epoch from next_attempt_at - (select now from h))::float8,
       aggregate is not null and (select true from ` + n.parked + ` p where p.aggregate = due.aggregate limit 1) is true
from (select o.*, sum(octet_length(o.payload)) over (rows unbounded preceding) as bytes
from (
    select t.shard, t.lim, least(t.cut, f.lo) as lo
    from unnest($3::int2[], $4::int8[], $5::int4[]) as t(shard, cut, lim) left join f using (shard)) t,
lateral (
    select * from ` + n.outbox + ` o where o.shard = t.shard and o.id > t.lo
      and (o.aggregate is null or o.aggregate <> all($6::text[])) and o.topic <> all($7::text[])
    order by o.id limit t.lim) o
where t.lo < 9223372036854775807) due`
}

type reader struct {
	store *Store
	scan  *scan.State

	token string   // of the server's incarnation; empty: nothing is remembered
	xmax  string   // of the last read's snapshot
	xip   []string // transactions in progress then
}

// Reader implements [backends.Outbox].
func (s *Store) Reader() backends.Reader {
	r := &reader{store: s, scan: scan.New()}
	r.forget()
	return r
}

// firstXmax stands for no transaction: nothing is at or above it.
const firstXmax = "18446744073709551615"

// forget drops all memory of transactions.
func (r *reader) forget() {
	r.scan.Forget()
	r.token, r.xmax, r.xip = "", firstXmax, []string{}
}

// Read implements [backends.Reader].
func (r *reader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if want.Limit <= 0 {
		return nil, fmt.Errorf("postgres: read: Limit is %d, allowed is 1 or more", want.Limit)
	}
	now := time.Now()
	r.scan.Begin(lease, want.SkipTopics, now)
	r.scan.SafetyNet(now)
	records, err := r.scan.Fill(ctx, lease, want, r.round)
	if err != nil {
		return nil, fmt.Errorf("postgres: read: %w", mend(err))
	}
	return records, nil
}

// round reads once. It changes memory only when the whole answer is in.
func (r *reader) round(ctx context.Context, lease backends.Lease, want backends.Want) (scan.Result, error) {
	asks := r.scan.Allot(lease, want)
	a := &arrivals{found: scan.NewFound(want.Limit, want.MaxBytes)}
	err := r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginRead, func(b *pgx.Batch) {
			b.Queue(planGuards)
			b.Queue(r.store.stmts.read, r.arguments(asks, want)...).Query(a.take)
		})
	})
	if err != nil {
		return scan.Result{}, err
	}
	xmax, xip := parseSnapshot(a.snap)
	if a.token == "" || a.token != r.token && r.token != "" || older(xmax, r.xmax) {
		return r.startAfresh(ctx, a.token)
	}
	r.token, r.xmax, r.xip = a.token, xmax, xip
	for _, f := range a.fresh {
		r.scan.Lower(f.Shard, f.ID) // also of a shard that this question left out
	}
	got := r.scan.Adopt(asks, a.found, time.Now())
	all, err := r.setAside(ctx, got.Parked)
	got.More = got.More && all
	return got, err
}

func (r *reader) arguments(asks []scan.Ask, want backends.Want) []any {
	shards, cuts, limits := make([]int16, len(asks)), make([]int64, len(asks)), make([]int32, len(asks))
	for i, a := range asks {
		shards[i], cuts[i], limits[i] = int16(a.Shard), a.Cut, int32(a.Limit)
	}
	skip := want.SkipTopics
	if skip == nil {
		skip = []string{}
	}
	most := int64(want.MaxBytes)
	if most <= 0 {
		most = math.MaxInt64
	}
	return []any{r.xmax, r.xip, shards, cuts, limits, r.scan.SkipAggregates(), skip, most}
}

// startAfresh forgets everything after a crash, a promotion or a restore, and
// makes the token that tells the next one.
func (r *reader) startAfresh(ctx context.Context, token string) (scan.Result, error) {
	r.forget()
	again := scan.Result{More: true, Afresh: true}
	if token != "" {
		r.token = token
		return again, nil
	}
	err := r.store.conns.with(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, r.store.stmts.newToken); err != nil {
			return err
		}
		return c.QueryRow(ctx, r.store.stmts.token).Scan(&r.token)
	})
	return again, err
}

// arrivals takes the rows of one answer.
type arrivals struct {
	now   time.Time // the database's
	token string
	snap  string
	fresh []backends.Ref // kind 1
	found *scan.Found
}
