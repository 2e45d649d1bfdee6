package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Settling runs with synchronous_commit off: an outcome that is lost in a crash
// only repeats a send. SET LOCAL in effect, so it ends with this transaction
// and never reaches another that the pool or a pooler gives the session to.
const settleSettings = `select set_config('synchronous_commit', 'off', true),
set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`

// settleStatements record outcomes. All of them name the incarnation that the
// records were read in: after a crash, ids that had not reached the disk are
// handed out again, and a late word must not hit their new bearers.
type settleStatements struct {
	deliver, archive, fence, retry, mark, move, setAside string
}

const movedColumns = `shard, id, message_id, topic, aggregate, sequence, payload, metadata, created_at`

func newSettleStatements(n names) settleStatements {
	current := `exists (select from ` + n.incarnation + ` where token::text = $1::text)`
	// A row is found by key and deleted by place: one index probe for each.
	deliver := `delete from ` + n.outbox + ` where ctid = any(array(
    select i.ctid from unnest($2::int2[], $3::int8[]) as t(shard, id),
    lateral (select ctid from ` + n.outbox + ` i where i.shard = t.shard and i.id = t.id limit 1) i)) and ` + current
	refs := `unnest($2::int2[], $3::int8[], $5::int8[], $6::int4[], $7::text[]`
	held := `s.shard = t.shard and s.owner = $4::text and s.epoch = t.epoch and ` + current
	return settleStatements{
		deliver: deliver,
		archive: `with gone as (` + deliver + ` returning ` + movedColumns + `)
insert into ` + n.archive + ` (` + movedColumns + `) select ` + movedColumns + ` from gone`,
		// Held until the transaction ends, so that no take-over comes between.
		fence: `select s.shard from ` + n.shards + ` s join unnest($2::int2[], $3::int8[]) as t(shard, epoch) using (shard)
where s.owner = $1::text and s.epoch = t.epoch for share of s`,
		retry: `update ` + n.outbox + ` o set attempts = t.attempts, last_error = t.error,
    next_attempt_at = clock_timestamp() + t.wait * interval '1 microsecond'
from ` + refs + `, $8::int8[]) as t(shard, id, epoch, attempts, error, wait), ` + n.shards + ` s
where o.shard = t.shard and o.id = t.id and ` + held,
		mark: `insert into ` + n.parked + ` (aggregate, reason)
select distinct on (o.aggregate) o.aggregate, t.error
from ` + refs + `) as t(shard, id, epoch, attempts, error), ` + n.shards + ` s, ` + n.outbox + ` o
where o.shard = t.shard and o.id = t.id and o.aggregate is not null and ` + held + `
order by o.aggregate, o.id on conflict (aggregate) do nothing`,
		move: `with gone as (
    delete from ` + n.outbox + ` o using ` + refs + `) as t(shard, id, epoch, attempts, error), ` + n.shards + ` s
    where o.shard = t.shard and o.id = t.id and ` + held + `
    returning o.shard, o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata, o.created_at, t.attempts, t.error)
insert into ` + n.dead + ` (` + movedColumns + `, attempts, last_error) select * from gone`,
		// 1. A reader meets a record of a parked aggregate.
		// 2. Someone requeues the aggregate: its marker goes.
		// 3. Moved now, the record would be stranded. So the marker is locked, and
		// what has none any more stays.
		setAside: `with marked as (
    select p.aggregate from ` + n.parked + ` p where p.aggregate in (
        select o.aggregate from unnest($1::int2[], $2::int8[]) as t(shard, id) join ` + n.outbox + ` o using (shard, id))
    order by p.aggregate for key share),
gone as (
    delete from ` + n.outbox + ` o using unnest($1::int2[], $2::int8[]) as t(shard, id), marked m
    where o.shard = t.shard and o.id = t.id and o.aggregate = m.aggregate
    returning o.shard, o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata, o.created_at, o.attempts, o.last_error)
insert into ` + n.dead + ` (` + movedColumns + `, attempts, last_error) select * from gone`,
	}
}

// refList is outcomes as the statements take them.
type refList struct {
	shards   []int16
	ids      []int64
	epochs   []int64
	attempts []int32
	errs     []string
	waits    []int64 // microseconds
}

func (l *refList) add(o backends.Outcome, epoch int64) {
	l.shards = append(l.shards, int16(o.Record.Shard))
	l.ids = append(l.ids, o.Record.ID)
	l.epochs = append(l.epochs, epoch)
	l.attempts = append(l.attempts, int32(o.Record.Attempts+1))
	l.errs = append(l.errs, records.ErrorText(o.Err))
	l.waits = append(l.waits, o.After.Microseconds())
}

// plan is the outcomes by what must be written.
type plan struct {
	delivered, retried, marked, moved refList
}

func (p *plan) fenced() bool { return len(p.retried.ids)+len(p.moved.ids) > 0 }

func planOf(lease backends.Lease, outcomes []backends.Outcome) (plan, error) {
	var p plan
	p.delivered.shards = make([]int16, 0, len(outcomes))
	p.delivered.ids = make([]int64, 0, len(outcomes))
	for i, o := range outcomes {
		if o.Record == nil {
			return p, fmt.Errorf("postgres: settle: outcome %d names no record", i)
		}
		epoch, _ := lease.Epoch(o.Record.Shard) // a shard not held has epoch 0, which no owner has
		switch o.Action {
		case backends.Delivered:
			p.delivered.shards = append(p.delivered.shards, int16(o.Record.Shard))
			p.delivered.ids = append(p.delivered.ids, o.Record.ID)
		case backends.Retry:
			p.retried.add(o, epoch)
		case backends.Park:
			p.marked.add(o, epoch)
			p.moved.add(o, epoch)
		case backends.Skip:
			p.moved.add(o, epoch)
		case backends.Release:
		default:
			return p, fmt.Errorf("postgres: settle: outcome %d has no known action (%d)", i, o.Action)
		}
	}
	return p, nil
}

// Settle implements [backends.Reader].
func (r *reader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	p, err := planOf(lease, outcomes)
	if err != nil {
		return err
	}
	held := map[int]bool{}
	if len(p.delivered.ids) > 0 || p.fenced() {
		held, err = r.write(ctx, lease, &p)
	}
	if err != nil {
		r.scan.Unknown(outcomes)
		return fmt.Errorf("postgres: settle: %w", mend(err))
	}
	if err := r.scan.Remember(outcomes, func(shard int) bool { return held[shard] }); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// write records the outcomes in one transaction and one round trip. It returns
// the shards of which more than deliveries was recorded.
func (r *reader) write(ctx context.Context, lease backends.Lease, p *plan) (map[int]bool, error) {
	st, token, owner := &r.store.stmts.settle, r.token, lease.Owner
	held := map[int]bool{}
	err := r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			b.Queue(settleSettings)
			if d := &p.delivered; len(d.ids) > 0 {
				stmt := st.deliver
				if r.store.archiving {
					stmt = st.archive
				}
				b.Queue(stmt, token, d.shards, d.ids)
			}
			if !p.fenced() {
				return
			}
			shards, epochs := split(lease)
			b.Queue(st.fence, owner, shards, epochs).Query(func(rows pgx.Rows) error {
				var shard int
				_, err := pgx.ForEachRow(rows, []any{&shard}, func() error { held[shard] = true; return nil })
				return err
			})
			if l := &p.retried; len(l.ids) > 0 {
				b.Queue(st.retry, token, l.shards, l.ids, owner, l.epochs, l.attempts, l.errs, l.waits)
			}
			if l := &p.marked; len(l.ids) > 0 {
				b.Queue(st.mark, token, l.shards, l.ids, owner, l.epochs, l.attempts, l.errs)
			}
			if l := &p.moved; len(l.ids) > 0 {
				b.Queue(st.move, token, l.shards, l.ids, owner, l.epochs, l.attempts, l.errs)
			}
		})
	})
	return held, err
}

// setAside moves records of parked aggregates to the dead letters.
func (r *reader) setAside(ctx context.Context, refs []backends.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	var l refList
	for _, ref := range refs {
		l.shards = append(l.shards, int16(ref.Shard))
		l.ids = append(l.ids, ref.ID)
	}
	return r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			b.Queue(settleSettings)
			b.Queue(r.store.stmts.settle.setAside, l.shards, l.ids)
		})
	})
}
