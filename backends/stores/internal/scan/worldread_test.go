package scan_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

func (w *world) read() {
	want := backends.Want{Limit: 1 + w.dice(12)}
	if w.dice(4) == 0 {
		want.Limit = 300
	}
	if w.dice(3) == 0 {
		want.MaxBytes = 1 + w.dice(200)
	}
	if w.dice(4) == 0 {
		want.SkipTopics = []string{topics[w.dice(len(topics))]}
	}
	w.readWant(want)
}

func (w *world) readWant(want backends.Want) {
	w.hand = nil
	w.takeLease()
	begin, clock := time.Now(), w.clock
	now := begin
	if w.plant.earlyHolds {
		now = now.Add(time.Second)
	}
	due := w.due(want, begin)
	w.state.Begin(w.lease, want.SkipTopics, now)
	got, err := w.state.Fill(context.Background(), w.lease, want, w.round)
	if err != nil {
		if !errors.Is(err, errCut) {
			w.fault("read: %w", err)
		}
		return
	}
	w.hand = got
	w.limits(got, want)
	for i := range got {
		w.order(got, i, want, clock)
	}
	if len(got) == 0 && len(due) > 0 {
		w.fault("%v of %q in %q is due and was not returned", due[0].Ref, due[0].Aggregate, due[0].Topic)
	}
	for _, r := range w.visible() {
		if !slices.Contains(w.fresh, r.Ref) && !w.state.Accounts(r.Ref, r.Aggregate, r.Topic) {
			w.fault("memory does not account for %v of %q in %q", r.Ref, r.Aggregate, r.Topic)
		}
	}
}

func (w *world) limits(got []backends.Record, want backends.Want) {
	if len(got) > want.Limit {
		w.fault("%d records, %d are allowed", len(got), want.Limit)
	}
	// Without one of them, the answer is below the limit.
	size, largest := 0, 0
	for _, r := range got {
		size += len(r.Payload)
		largest = max(largest, len(r.Payload))
	}
	if want.MaxBytes > 0 && len(got) > 1 && size-largest >= want.MaxBytes {
		w.fault("%d records have %d bytes, %d are allowed", len(got), size, want.MaxBytes)
	}
}

// order checks one record that was returned: it is there, once, due, and no
// earlier one of its aggregate is left behind.
func (w *world) order(got []backends.Record, i int, want backends.Want, clock int) {
	rec := &got[i]
	r := w.row(rec.Ref)
	before := got[:i]
	returned := func(ref backends.Ref) bool {
		return slices.ContainsFunc(before, func(b backends.Record) bool { return b.Ref == ref })
	}
	_, leased := w.lease.Epoch(rec.Shard)
	switch {
	case r.place != waiting:
		w.fault("%v is not there (%d)", rec.Ref, r.place)
	case !leased:
		w.fault("%v is not leased", rec.Ref)
	case returned(rec.Ref):
		w.fault("%v came twice in one read", rec.Ref)
	case slices.Contains(want.SkipTopics, rec.Topic):
		w.fault("%v is of a topic that is held back", rec.Ref)
	case time.Now().Before(r.next), time.Now().Before(w.released[rec.Shard][key(rec)]):
		w.fault("%v came early", rec.Ref)
	}
	for _, e := range w.visible() {
		// Order across topics is kept for what was there when the read began.
		known := e.Topic == rec.Topic || e.since <= clock
		if rec.Aggregate != "" && e.Aggregate == rec.Aggregate && e.ID < rec.ID && known &&
			!slices.Contains(want.SkipTopics, e.Topic) && !returned(e.Ref) {
			w.fault("%v overtook %v of %q", rec.Ref, e.Ref, rec.Aggregate)
		}
	}
}

// due is what a read must not answer with nothing to. A wait may be longer by
// the time that an answer took, a second here.
func (w *world) due(want backends.Want, now time.Time) []*stored {
	waits := map[string]bool{}
	for _, r := range w.visible() {
		k := key(&r.Record)
		waits[k] = waits[k] || now.Before(r.next.Add(time.Second)) || now.Before(w.released[r.Shard][k])
	}
	return slices.DeleteFunc(w.visible(), func(r *stored) bool {
		_, leased := w.lease.Epoch(r.Shard)
		return !leased || waits[key(&r.Record)] || w.parked[r.Aggregate] || slices.Contains(want.SkipTopics, r.Topic)
	})
}
