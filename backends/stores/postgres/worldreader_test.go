package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

// worldReader reads what a randomWorld writes, gives every kind of outcome, and
// compares each read with a full read under the same snapshot.
type worldReader struct {
	w      *randomWorld
	r      *rand.Rand
	reader *reader
	plant  plant
	oracle bool

	last  map[string]int // the last number delivered, by aggregate and topic order
	loose int
	reads int
}

// plant is a fault in a reader.
type plant struct {
	before func(context.Context, *reader) error // before each read
	after  func(context.Context, *reader) error // after each read
	forget bool                                 // what has no outcome is not read again
}

var errLost = errors.New("the read leaves out a row that is visible")

// turn is one read with its outcomes.
func (x *worldReader) turn(ctx context.Context, lease backends.Lease) (int, error) {
	want := backends.Want{Limit: 1 + x.r.IntN(60)}
	switch x.r.IntN(12) {
	case 0:
		want.Limit = 1000
	case 1:
		want.SkipTopics = []string{"u"}
	case 2:
		want.MaxBytes = 1 + x.r.IntN(100)
	}
	if x.plant.before != nil {
		if err := x.plant.before(ctx, x.reader); err != nil {
			return 0, err
		}
	}
	got, err := x.reader.Read(ctx, lease, want)
	if err != nil {
		return 0, err
	}
	x.reads++
	if x.plant.after != nil {
		if err := x.plant.after(ctx, x.reader); err != nil {
			return 0, err
		}
	}
	if x.oracle {
		if err := x.compare(ctx); err != nil {
			return 0, err
		}
	}
	return len(got), x.settle(ctx, lease, got)
}

// compare reads everything that was visible to the reader's last statement. Only
// this reader removes rows of its shards, so what is there now and was visible
// then is what a full read under that snapshot would have shown.
func (x *worldReader) compare(ctx context.Context) error {
	var refs []backends.Ref
	var names, topics []string
	err := x.w.store.conns.with(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select shard, id, coalesce(aggregate, ''), topic from `+x.w.store.names.outbox+` o
where pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
  and not exists (select from `+x.w.store.names.parked+` p where p.aggregate = o.aggregate)`, x.snapshot())
		if err != nil {
			return err
		}
		var ref backends.Ref
		var name, topic string
		_, err = pgx.ForEachRow(rows, []any{&ref.Shard, &ref.ID, &name, &topic}, func() error {
			refs, names, topics = append(refs, ref), append(names, name), append(topics, topic)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	for i, ref := range refs {
		if !x.reader.scan.Accounts(ref, names[i], topics[i]) {
			return fmt.Errorf("%w: %v of %q, read %d", errLost, ref, names[i], x.reads)
		}
	}
	return nil
}

// snapshot is the text of the last statement's snapshot.
func (x *worldReader) snapshot() string {
	xmin, _ := strconv.ParseUint(x.reader.xmax, 10, 64)
	for _, id := range x.reader.xip {
		n, _ := strconv.ParseUint(id, 10, 64)
		xmin = min(xmin, n)
	}
	return fmt.Sprintf("%d:%s:%s", xmin, x.reader.xmax, strings.Join(x.reader.xip, ","))
}

// settle gives outcomes as a forwarder does: after the first failure of an
// aggregate nothing more of it is delivered.
func (x *worldReader) settle(ctx context.Context, lease backends.Lease, got []backends.Record) error {
	stopped := map[string]bool{}
	var outcomes []backends.Outcome
	for i := range got {
		rec := &got[i]
		o := backends.Outcome{Record: rec, Action: backends.Delivered}
		switch n := x.r.IntN(200); {
		case stopped[rec.Aggregate] && rec.Aggregate != "":
			if n < 100 {
				continue // no outcome at all
			}
			o.Action = backends.Release
		case n < 4:
			o.Action, o.After, o.Err = backends.Retry, time.Duration(x.r.IntN(20))*time.Millisecond, errLost
		case n < 6:
			o.Action, o.After = backends.Release, time.Duration(x.r.IntN(10))*time.Millisecond
		case n == 6:
			o.Action, o.Err = backends.Park, errLost
		case n < 10:
			stopped[rec.Aggregate] = true
			continue
		}
		stopped[rec.Aggregate] = o.Action != backends.Delivered
		outcomes = append(outcomes, o)
	}
	if x.plant.forget {
		if err := x.reader.scan.Remember(deliver(got), func(int) bool { return true }); err != nil {
			return err
		}
	}
	if err := x.reader.Settle(ctx, lease, outcomes); err != nil {
		return err
	}
	for _, o := range outcomes {
		if o.Action != backends.Delivered {
			continue
		}
		x.w.delivered.Add(1)
		if err := x.note(o.Record); err != nil {
			return err
		}
	}
	return nil
}

func deliver(got []backends.Record) []backends.Outcome {
	out := make([]backends.Outcome, len(got))
	for i := range got {
		out[i] = backends.Outcome{Record: &got[i], Action: backends.Delivered}
	}
	return out
}

var errOrder = errors.New("out of order")

// note checks order within aggregate and topic. Numbers run over both topics.
func (x *worldReader) note(rec *backends.Record) error {
	if rec.Aggregate == "" {
		x.loose++
		return nil
	}
	n, err := strconv.Atoi(string(rec.Payload))
	if err != nil {
		return err
	}
	key := rec.Topic + " " + rec.Aggregate
	if n <= x.last[key] {
		return fmt.Errorf("%w: %s: %d after %d", errOrder, key, n, x.last[key])
	}
	x.last[key] = n
	return nil
}

// requeue takes back what was parked, as an operator would, until ctx ends.
func (w *randomWorld) requeue(ctx context.Context) error {
	for ctx.Err() == nil {
		nap(ctx, 3*time.Millisecond)
		if err := w.requeueAll(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (w *randomWorld) requeueAll(ctx context.Context) error {
	parked, err := w.store.Parked(ctx, "", 100)
	if err != nil {
		return err
	}
	for _, p := range parked {
		if _, err := w.store.Requeue(ctx, backends.DeadTarget{Aggregate: p.Aggregate}); err != nil && !errors.Is(err, backends.ErrNotFound) {
			return err
		}
	}
	dead, err := w.store.Dead(ctx, backends.DeadFilter{})
	if err != nil {
		return err
	}
	for _, d := range dead {
		if d.Aggregate != "" {
			continue // comes with its aggregate
		}
		if _, err := w.store.Requeue(ctx, backends.DeadTarget{Record: &d.Ref}); err != nil {
			return err
		}
	}
	return nil
}

// parts splits a lease between readers, differently each time, so that shards
// are gained and lost.
func parts(lease backends.Lease, n int, r *rand.Rand) []backends.Lease {
	owner := make([]int, backends.Shards)
	for i := range owner {
		owner[i] = r.IntN(n)
	}
	out := make([]backends.Lease, n)
	for i := range out {
		out[i] = lease.Only(func(shard int) bool { return owner[shard] == i })
	}
	return slices.Clone(out)
}
