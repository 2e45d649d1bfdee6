package scan_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// Where a record is.
const (
	hidden  = iota // its transaction is open
	waiting        // in the outbox
	gone           // delivered, or never committed
	dead
)

type stored struct {
	backends.Record
	next  time.Time
	place int
	since int // the statement-free time at which it became visible
}

type transaction struct {
	rows  []*stored
	locks map[string]bool
}

// world is a database with one reader.
type world struct {
	script []byte
	plant  plant
	err    error

	rows       []*stored // by id
	open       []*transaction
	parked     map[string]bool
	fresh      []backends.Ref // visible since the last statement
	clock      int
	holdsAside bool // statements leave held aggregates out

	state    *scan.State
	epoch    int64
	lease    backends.Lease
	hand     []backends.Record
	readAs   backends.Lease                        // of the last read
	released [backends.Shards]map[string]time.Time // by aggregate, or id of a record without one
}

var (
	aggregates = []string{"", "a", "b", "c", "d"}
	topics     = []string{"t", "t", "u"}
)

func newWorld(script []byte, p plant) *world {
	w := &world{script: script, plant: p, parked: map[string]bool{}, state: scan.New()}
	w.holdsAside = w.dice(2) == 0
	w.lease = w.leaseOf(func(int) bool { return true })
	return w
}

// dice takes the next throw out of the script. A script that has ended throws
// what makes nothing happen.
func (w *world) dice(n int) int {
	if len(w.script) == 0 {
		return n - 1
	}
	b := w.script[0]
	w.script = w.script[1:]
	return int(b) % n
}

func (w *world) fault(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) pass(d time.Duration) { <-time.After(d) }

func (w *world) visible() []*stored {
	return slices.DeleteFunc(slices.Clone(w.rows), func(r *stored) bool { return r.place != waiting })
}

func (w *world) row(ref backends.Ref) *stored {
	for _, r := range w.rows {
		if r.Ref == ref {
			return r
		}
	}
	return nil
}

// append adds a record to an open or a new transaction, if no other holds its
// aggregate and topic.
func (w *world) append() {
	a, topic := w.dice(len(aggregates)), topics[w.dice(len(topics))]
	i := w.dice(3)
	if i >= len(w.open) {
		w.open = append(w.open, &transaction{locks: map[string]bool{}})
		i = len(w.open) - 1
	}
	lock := topic + "/" + aggregates[a]
	for j, tx := range w.open {
		if j != i && a > 0 && tx.locks[lock] {
			return
		}
	}
	w.open[i].locks[lock] = true
	for range 1 + w.dice(4) {
		id := int64(len(w.rows) + 1)
		shard := a % 3
		if a == 0 {
			shard = int(id % 3)
		}
		r := &stored{Record: backends.Record{
			Ref: backends.Ref{Shard: shard, ID: id}, Topic: topic, Aggregate: aggregates[a], Payload: make([]byte, w.dice(50)),
		}}
		w.rows = append(w.rows, r)
		w.open[i].rows = append(w.open[i].rows, r)
	}
}

// end ends an open transaction.
func (w *world) end(i int, commit bool) {
	w.clock++
	for _, r := range w.open[i].rows {
		r.place = gone
		if commit {
			w.show(r)
		}
	}
	w.open = slices.Delete(w.open, i, i+1)
}

func (w *world) show(r *stored) {
	r.place, r.since = waiting, w.clock
	w.fresh = append(w.fresh, r.Ref)
}

func (w *world) requeue(aggregate string) {
	w.clock++
	delete(w.parked, aggregate)
	for _, r := range w.rows {
		if r.place == dead && r.Aggregate == aggregate {
			r.next = time.Time{}
			w.show(r)
		}
	}
}

func (w *world) leaseOf(keep func(shard int) bool) backends.Lease {
	l := backends.Lease{Owner: "o"}
	for shard := range backends.Shards {
		l.Shards = append(l.Shards, backends.ShardLease{Shard: shard, Epoch: w.epoch})
	}
	return l.Only(keep)
}

// changeLease loses shards, which another owner works on for a while, or gains
// them under a new epoch.
func (w *world) changeLease() {
	w.epoch++
	before, lost := w.lease, w.dice(4)
	w.lease = w.leaseOf(func(shard int) bool { return shard != lost })
	for i, l := range w.lease.Shards {
		if was, held := before.Epoch(l.Shard); held && w.dice(3) > 0 {
			w.lease.Shards[i].Epoch = was
			continue
		}
		w.forget(l.Shard)
	}
	w.forget(lost)
}

// forget is what another owner's turn leaves of a shard.
func (w *world) forget(shard int) {
	seen := map[string]bool{}
	for _, r := range w.visible() {
		if r.Shard != shard {
			continue
		}
		if w.parked[r.Aggregate] || r.Aggregate != "" && seen[r.Aggregate] || time.Now().Before(r.next) {
			seen[r.Aggregate] = true
			continue
		}
		seen[r.Aggregate] = true
		switch w.dice(6) {
		case 0:
			r.place = gone
		case 1:
			r.next = time.Now().Add(2 * time.Second)
		}
	}
}

func key(r *backends.Record) string {
	if r.Aggregate == "" {
		return fmt.Sprint("#", r.ID)
	}
	return r.Aggregate
}

// settle records outcomes in the database, then in memory, or fails.
func (w *world) settle(outcomes []backends.Outcome) {
	if w.dice(30) == 0 {
		w.state.Unknown(outcomes)
		w.hand = nil
		return
	}
	holds := func(shard int) bool { _, ok := w.lease.Epoch(shard); return ok }
	lost := false
	for _, o := range outcomes {
		if !w.record(o, holds(o.Record.Shard)) {
			lost = true
		}
	}
	if w.plant.forgetsHand {
		outcomes = slices.Clone(outcomes)
		for i := range outcomes {
			outcomes[i].Action = backends.Delivered
		}
	}
	err := w.state.Remember(outcomes, holds)
	if lost != errors.Is(err, backends.ErrLeaseLost) && !w.plant.forgetsHand {
		w.fault("a lost lease: %v, it was said: %v", lost, err)
	}
	w.hand = nil
}

// record writes one outcome and reports whether the lease allowed it.
func (w *world) record(o backends.Outcome, held bool) bool {
	r := w.row(o.Record.Ref)
	there := r.place == waiting
	switch {
	case o.Action == backends.Delivered:
		if there {
			r.place = gone
		}
	case o.Action == backends.Release:
		w.waits(o)
	case !held:
		return false
	case !there:
	case o.Action == backends.Retry:
		r.next = time.Now().Add(o.After)
	default:
		w.parked[r.Aggregate] = w.parked[r.Aggregate] || o.Action == backends.Park && r.Aggregate != ""
		r.place = dead
	}
	return true
}

func (w *world) waits(o backends.Outcome) {
	m := w.released[o.Record.Shard]
	if until := time.Now().Add(o.After); m != nil && until.After(m[key(o.Record)]) {
		m[key(o.Record)] = until
	}
}

// takeLease drops what was only in the memory of a shard that was lost.
func (w *world) takeLease() {
	for shard := range w.released {
		was, held := w.readAs.Epoch(shard)
		if now, holds := w.lease.Epoch(shard); !held || !holds || was != now {
			w.released[shard] = map[string]time.Time{}
		}
	}
	w.readAs = w.lease
}
