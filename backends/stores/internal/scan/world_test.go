package scan_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// Transactions that commit in any order, reads that are limited in every way,
// outcomes of every kind, leases that go and come back: whatever happens, memory
// accounts for every record, nothing is overtaken or early, and all of it comes.
func TestState_AccountsForEverythingInARandomWorld(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			require.NoError(t, play(script(seed), plant{}), "seed %d", seed)
		})
	}
}

func FuzzState(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(script(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) { require.NoError(t, play(script, plant{})) })
	})
}

// plant is one way in which a store or the memory could be wrong.
type plant struct {
	deafToCommits bool // what becomes visible below a cut is not named
	earlyHolds    bool // time runs ahead
	forgetsHand   bool // every outcome is taken for a delivery
	losesRest     bool // a cut answer is taken for a whole one
}

// The world is tested too.
func TestState_TheRandomWorldFindsPlantedFaults(t *testing.T) {
	for name, p := range map[string]plant{
		"deaf to late commits": {deafToCommits: true},
		"holds end early":      {earlyHolds: true},
		"releases forgotten":   {forgetsHand: true},
		"rest of a shard lost": {losesRest: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(400) {
				var err error
				synctest.Test(t, func(*testing.T) { err = play(script(seed), p) })
				if err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}

func script(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]byte, 200+r.IntN(800))
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// play runs a script to its end, then everything that is left to its delivery.
func play(script []byte, p plant) error {
	w := newWorld(script, p)
	for len(w.script) > 0 && w.err == nil {
		w.step()
	}
	for len(w.open) > 0 {
		w.end(0, true)
	}
	w.lease = w.leaseOf(func(int) bool { return true })
	for a := range w.parked {
		w.requeue(a)
	}
	for empty := 0; empty < 2 && w.err == nil; {
		w.pass(time.Hour)
		w.readWant(backends.Want{Limit: 7})
		if len(w.hand) == 0 {
			empty++
			continue
		}
		empty = 0
		w.settle(deliveries(w.hand))
	}
	if left := w.visible(); len(left) > 0 && w.err == nil {
		return fmt.Errorf("%d records were never returned, the first is %v", len(left), left[0].Ref)
	}
	return w.err
}

func deliveries(records []backends.Record) []backends.Outcome {
	out := make([]backends.Outcome, len(records))
	for i := range records {
		out[i] = backends.Outcome{Record: &records[i], Action: backends.Delivered}
	}
	return out
}

// step does one thing that may happen.
func (w *world) step() {
	switch n := w.dice(20); {
	case n < 6:
		w.append()
	case n < 9:
		if len(w.open) > 0 {
			w.end(w.dice(len(w.open)), w.dice(6) > 0)
		}
	case n < 14:
		w.read()
	case n < 17:
		w.settle(w.outcomes())
	case n == 17:
		w.pass(time.Duration(w.dice(40)) * 100 * time.Millisecond)
	case n == 18:
		w.changeLease()
	default:
		for _, a := range aggregates {
			if w.parked[a] && w.dice(2) == 0 {
				w.requeue(a)
			}
		}
	}
}

// outcomes chooses what becomes of the records in hand, as a forwarder would:
// after one that was not delivered, the rest of its aggregate is not either.
func (w *world) outcomes() []backends.Outcome {
	var out []backends.Outcome
	stopped := map[string]bool{}
	for i := range w.hand {
		r := &w.hand[i]
		o := backends.Outcome{Record: r, Action: backends.Delivered}
		switch n := w.dice(12); {
		case stopped[r.Aggregate] && n%2 == 0, n == 0:
			o.Action = 0 // no outcome
		case stopped[r.Aggregate], n == 1:
			o.Action = backends.Release
			o.After = time.Duration(w.dice(3)) * time.Second
		case n == 2:
			o.Action, o.After = backends.Retry, time.Duration(w.dice(4))*time.Second
		case n == 3:
			o.Action = backends.Park
		case n == 4:
			o.Action = backends.Skip
		}
		if o.Action != backends.Delivered && o.Action != backends.Skip && r.Aggregate != "" {
			stopped[r.Aggregate] = true
		}
		if o.Action != 0 {
			out = append(out, o)
		}
	}
	return out
}

var errCut = errors.New("the connection was cut")

// round is one statement of a store, with what may happen beside it.
func (w *world) round(_ context.Context, lease backends.Lease, want backends.Want) (scan.Result, error) {
	asks := w.state.Allot(lease, want)
	if w.dice(40) == 0 {
		return scan.Result{}, errCut
	}
	found := w.statement(asks, want)
	seen := w.fresh
	w.fresh = nil
	w.beside()
	if !w.plant.deafToCommits {
		for _, ref := range seen {
			w.state.Lower(ref.Shard, ref.ID-1)
		}
	}
	if w.plant.losesRest {
		for i := range asks {
			asks[i].Limit++
		}
	}
	got := w.state.Adopt(asks, found, time.Now())
	if w.dice(40) == 0 {
		return got, errCut
	}
	for _, ref := range got.Parked {
		if r := w.row(ref); r != nil && w.parked[r.Aggregate] {
			r.place = dead
		}
	}
	w.beside()
	return got, nil
}

// beside does what may happen between two statements.
func (w *world) beside() {
	switch w.dice(10) {
	case 0:
		w.pass(time.Second)
	case 1:
		w.append()
	case 2:
		if len(w.open) > 0 {
			w.end(w.dice(len(w.open)), true)
		}
	case 3:
		for _, a := range aggregates {
			if w.parked[a] {
				w.requeue(a)
				return
			}
		}
	}
}

// statement answers as a database does: from one state, by id, to the limit.
func (w *world) statement(asks []scan.Ask, want backends.Want) *scan.Found {
	found := scan.NewFound(want.Limit, want.MaxBytes)
	var held []string
	if w.holdsAside {
		held = w.state.SkipAggregates()
	}
	for _, a := range asks {
		cut, n := a.Cut, 0
		for _, ref := range w.fresh {
			if ref.Shard == a.Shard && !w.plant.deafToCommits {
				cut = min(cut, ref.ID-1)
			}
		}
		for _, r := range w.visible() {
			if r.Shard != a.Shard || r.ID <= cut || slices.Contains(want.SkipTopics, r.Topic) ||
				r.Aggregate != "" && slices.Contains(held, r.Aggregate) || n == a.Limit {
				continue
			}
			n++
			found.Add(scan.Row{Record: r.Record, Wait: max(0, time.Until(r.next)), Parked: w.parked[r.Aggregate]})
		}
	}
	return found
}
