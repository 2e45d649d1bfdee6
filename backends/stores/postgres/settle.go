package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Settling runs with synchronous_commit off: an outcome that is lost in a crash
// only repeats a send. SET LOCAL in effect, so it ends with this transaction
// and never reaches another that the pool or a pooler gives the session to.
const settleSettings = `select set_config('synchronous_commit', 'off', true),
set_config('idle_in_transaction_session_timeout', '10s', true),
set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`

// settleStatements record outcomes. All of them name the incarnation that was
// read last, and of each record when it was made: after a crash, ids that had
// not reached the disk are handed out again, and a late word must not hit their
// new bearers.
type settleStatements struct {
	deliver, archive, fence, retry, mark, move, setAside string
}

const movedColumns = `shard, id, message_id, topic, aggregate, sequence, payload, metadata, created_at`

// Rows are found by key, each by one probe of the primary key, and changed by
// place. The limit keeps the planner from any other way, whatever it believes
// about the table; a join would scan a whole index where it believes it empty.
func newSettleStatements(n names) settleStatements {
	const refs = `unnest($2::int2[], $3::int8[], $4::timestamptz[], $6::int8[], $7::int4[], $8::text[]) as t(shard, id, at, epoch, attempts, error)`
	probe := func(columns string) string {
		return `lateral (select ` + columns + ` from ` + n.outbox + ` o where o.shard = t.shard and o.id = t.id and o.created_at = t.at limit 1) i`
	}
	current := `exists (select from ` + n.incarnation + ` where token::text = $1::text)`
	held := `exists (select from ` + n.shards + ` s where s.shard = t.shard and s.owner = $5::text and s.epoch = t.epoch) and ` + current
	places := `ctid = any(array(select i.ctid from ` + refs + `, ` + probe("ctid") + ` where ` + held + `))`
	deliver := `delete from ` + n.outbox + ` where ctid = any(array(
    select i.ctid from unnest($2::int2[], $3::int8[], $4::timestamptz[]) as t(shard, id, at), ` + probe("ctid") + `)) and ` + current
	return settleStatements{
		deliver: deliver,
		archive: `with gone as (` + deliver + ` returning ` + movedColumns + `)
insert into ` + n.archive + ` (` + movedColumns + `) select ` + movedColumns + ` from gone`,
		// Held until the transaction ends, so that no take-over comes between.
		fence: `select s.shard from ` + n.shards + ` s join unnest($2::int2[], $3::int8[]) as t(shard, epoch) using (shard)
where s.owner = $1::text and s.epoch = t.epoch order by s.shard for share of s`,
		retry: `update ` + n.outbox + ` set (attempts, last_error, next_attempt_at) = (
    select t.attempts, t.error, clock_timestamp() + t.wait * interval '1 microsecond'
    from unnest($2::int2[], $3::int8[], $7::int4[], $8::text[], $9::int8[]) as t(shard, id, attempts, error, wait)
    where t.shard = ` + n.outbox + `.shard and t.id = ` + n.outbox + `.id limit 1)
where ` + places,
		// An existing marker is locked too, so that no requeue comes between.
		mark: `insert into ` + n.parked + ` as p (aggregate, reason)
select distinct on (i.aggregate) i.aggregate, t.error from ` + refs + `, ` + probe("aggregate, id") + `
where i.aggregate is not null and ` + held + `
order by i.aggregate, i.id on conflict (aggregate) do update set reason = p.reason`,
		move: `with gone as (delete from ` + n.outbox + ` where ` + places + ` returning ` + movedColumns + `)
insert into ` + n.dead + ` (` + movedColumns + `, attempts, last_error)
select ` + movedColumns + `, t.attempts, t.error
from gone join unnest($2::int2[], $3::int8[], $7::int4[], $8::text[]) as t(shard, id, attempts, error) using (shard, id)`,
		// 1. A reader meets a record of a parked aggregate.
		// 2. Someone requeues the aggregate: its marker goes.
		// 3. Moved now, the record would be stranded. So the marker is locked, and
		// what has none any more, or one that is being taken away, stays.
		setAside: `with met as materialized (
    select i.ctid as place, i.aggregate from unnest($1::int2[], $2::int8[]) as t(shard, id),
    lateral (select ctid, aggregate from ` + n.outbox + ` o where o.shard = t.shard and o.id = t.id limit 1) i),
marked as materialized (
    select p.aggregate from ` + n.parked + ` p where p.aggregate in (select aggregate from met)
    order by p.aggregate for key share skip locked),
gone as (
    delete from ` + n.outbox + ` where ctid = any(array(select m.place from met m join marked using (aggregate)))
    returning ` + movedColumns + `, attempts, last_error)
insert into ` + n.dead + ` (` + movedColumns + `, attempts, last_error) select * from gone`,
	}
}

// refList is outcomes as the statements take them.
type refList struct {
	shards   []int16
	ids      []int64
	made     []time.Time
	epochs   []int64
	attempts []int32
	errs     []string
	waits    []int64 // microseconds
}

func (l *refList) name(r *backends.Record) {
	l.shards = append(l.shards, int16(r.Shard))
	l.ids = append(l.ids, r.ID)
	l.made = append(l.made, r.CreatedAt)
}

func (l *refList) add(o backends.Outcome, epoch int64) {
	l.name(o.Record)
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

// fence lists the shards that more than deliveries are to be recorded of.
func (p *plan) fence() (shards []int16, epochs []int64) {
	for _, l := range []*refList{&p.retried, &p.moved} {
		for i, shard := range l.shards {
			if !slices.Contains(shards, shard) {
				shards, epochs = append(shards, shard), append(epochs, l.epochs[i])
			}
		}
	}
	return shards, epochs
}

func planOf(lease backends.Lease, outcomes []backends.Outcome) (plan, error) {
	var p plan
	p.delivered = refList{
		shards: make([]int16, 0, len(outcomes)), ids: make([]int64, 0, len(outcomes)), made: make([]time.Time, 0, len(outcomes)),
	}
	for i, o := range outcomes {
		if o.Record == nil {
			return p, fmt.Errorf("postgres: settle: outcome %d names no record", i)
		}
		epoch, _ := lease.Epoch(o.Record.Shard) // a shard not held has epoch 0, which no owner has
		switch o.Action {
		case backends.Delivered:
			p.delivered.name(o.Record)
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
	var short []*refList
	if len(p.delivered.ids) > 0 || p.fenced() {
		held, short, err = r.write(ctx, lease, &p)
	}
	if err != nil {
		r.scan.Unknown(outcomes)
		return fmt.Errorf("postgres: settle: %w", mend(err))
	}
	for _, l := range short {
		for i, id := range l.ids {
			r.scan.Lower(int(l.shards[i]), id-1)
		}
	}
	if err := r.scan.Remember(outcomes, func(shard int) bool { return held[shard] }); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// write records the outcomes in one transaction and one round trip. It returns
// the shards of which more than deliveries was recorded, and lists of which not
// every record was found: they are looked at again.
func (r *reader) write(ctx context.Context, lease backends.Lease, p *plan) (held map[int]bool, short []*refList, err error) {
	st, token, owner := &r.store.stmts.settle, r.token, lease.Owner
	held = map[int]bool{}
	err = r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			counted := func(l *refList, stmt string, args ...any) {
				b.Queue(stmt, args...).Exec(func(tag pgconn.CommandTag) error {
					if tag.RowsAffected() < int64(len(l.ids)) {
						short = append(short, l)
					}
					return nil
				})
			}
			b.Queue(settleSettings)
			if d := &p.delivered; len(d.ids) > 0 {
				stmt := st.deliver
				if r.store.archiving {
					stmt = st.archive
				}
				counted(d, stmt, token, d.shards, d.ids, d.made)
			}
			if !p.fenced() {
				return
			}
			shards, epochs := p.fence()
			b.Queue(st.fence, owner, shards, epochs).Query(func(rows pgx.Rows) error {
				var shard int
				_, err := pgx.ForEachRow(rows, []any{&shard}, func() error { held[shard] = true; return nil })
				return err
			})
			if l := &p.retried; len(l.ids) > 0 {
				counted(l, st.retry, token, l.shards, l.ids, l.made, owner, l.epochs, l.attempts, l.errs, l.waits)
			}
			if l := &p.marked; len(l.ids) > 0 {
				b.Queue(st.mark, token, l.shards, l.ids, l.made, owner, l.epochs, l.attempts, l.errs)
			}
			if l := &p.moved; len(l.ids) > 0 {
				counted(l, st.move, token, l.shards, l.ids, l.made, owner, l.epochs, l.attempts, l.errs)
			}
		})
	})
	return held, short, err
}

// setAside moves records of parked aggregates to the dead letters. It returns
// false where some could not be moved now.
func (r *reader) setAside(ctx context.Context, refs []backends.Ref) (all bool, err error) {
	if len(refs) == 0 {
		return true, nil
	}
	var l refList
	for _, ref := range refs {
		l.shards = append(l.shards, int16(ref.Shard))
		l.ids = append(l.ids, ref.ID)
	}
	err = r.store.conns.with(ctx, func(c *pgx.Conn) error {
		return exchange(ctx, c, beginWrite, func(b *pgx.Batch) {
			b.Queue(settleSettings)
			b.Queue(r.store.stmts.settle.setAside, l.shards, l.ids).Exec(func(tag pgconn.CommandTag) error {
				all = tag.RowsAffected() == int64(len(refs))
				return nil
			})
		})
	})
	return all, err
}
