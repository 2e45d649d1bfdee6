package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// add puts something on a list.
func add[T any](t *inboxTx, list *[]*T, v *T) {
	t.change(func() func() {
		*list = append(*list, v)
		return func() { *list = slices.DeleteFunc(*list, func(o *T) bool { return o == v }) }
	})
}

// take takes what is meant off a list.
func take[T any](t *inboxTx, list *[]*T, which func(*T) bool) (n int) {
	t.change(func() func() {
		var taken []*T
		*list = slices.DeleteFunc(*list, func(v *T) bool {
			gone := which(v)
			if gone {
				taken = append(taken, v)
			}
			return gone
		})
		n = len(taken)
		return func() { *list = append(*list, taken...) }
	})
	return n
}

func cloneOf(d *backends.Delivery) backends.Delivery {
	c := *d
	c.Payload, c.Metadata = bytes.Clone(d.Payload), maps.Clone(d.Metadata)
	return c
}

// Held implements [inboxes.Buffer].
func (t *inboxTx) Held(ctx context.Context, key backends.InboxKey, sequence int64) (*backends.Delivery, bool, error) {
	t.store.mu.Lock()
	var found []*held
	for _, h := range t.box.buffer {
		if h.InboxKey == key && h.Sequence == sequence {
			found = append(found, h)
		}
	}
	t.store.mu.Unlock()
	for _, h := range found {
		d := cloneOf(&h.Delivery)
		if sequence != 0 {
			return &d, true, nil
		}
		if ok, err := t.hold(ctx, looseKey{key.Topic, h.MessageID}, false); err != nil || ok {
			return &d, ok && t.stillHeld(&d), err
		}
	}
	return nil, false, nil
}

type looseKey struct{ topic, id string }

func (t *inboxTx) stillHeld(d *backends.Delivery) bool {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	return slices.ContainsFunc(t.box.buffer, func(h *held) bool { return same(&h.Delivery, d) })
}

func same(a, b *backends.Delivery) bool {
	return a.InboxKey == b.InboxKey && a.Sequence == b.Sequence && a.MessageID == b.MessageID
}

// Hold implements [inboxes.Buffer].
func (t *inboxTx) Hold(_ context.Context, d *backends.Delivery) error {
	add(t, &t.box.buffer, &held{cloneOf(d), time.Now()})
	return nil
}

// Drop implements [inboxes.Buffer].
func (t *inboxTx) Drop(_ context.Context, d *backends.Delivery) (int, error) {
	return take(t, &t.box.buffer, func(h *held) bool { return same(&h.Delivery, d) }), nil
}

// Lowest implements [inboxes.Buffer].
func (t *inboxTx) Lowest(_ context.Context, key backends.InboxKey) (lowest int64, age time.Duration, ok bool, err error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for _, h := range t.box.buffer {
		if h.InboxKey != key {
			continue
		}
		if !ok || h.Sequence < lowest {
			lowest = h.Sequence
		}
		ok, age = true, max(age, time.Since(h.at))
	}
	return lowest, age, ok, nil
}

// BuryHeld implements [inboxes.Buffer].
func (t *inboxTx) BuryHeld(ctx context.Context, key backends.InboxKey) error {
	t.store.mu.Lock()
	var moved []backends.Delivery
	for _, h := range t.box.buffer {
		if h.InboxKey == key {
			moved = append(moved, h.Delivery)
		}
	}
	t.store.mu.Unlock()
	slices.SortFunc(moved, func(a, b backends.Delivery) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, d := range moved {
		if err := t.Bury(ctx, &d, 0, backends.ReasonParked, ""); err != nil {
			return err
		}
		if _, err := t.Drop(ctx, &d); err != nil {
			return err
		}
	}
	return nil
}

// Bury implements [inboxes.Letters].
func (t *inboxTx) Bury(_ context.Context, d *backends.Delivery, attempts int, reason, text string) error {
	t.store.mu.Lock()
	t.box.lastID++
	id := t.box.lastID
	t.store.mu.Unlock()
	add(t, &t.box.dead, &backends.InboxDead{
		Delivery: cloneOf(d), ID: id, DeadAt: time.Now().UTC(), Attempts: attempts, Reason: reason, LastError: text,
	})
	return nil
}

// Buried implements [inboxes.Letters].
func (t *inboxTx) Buried(_ context.Context, d *backends.Delivery) (bool, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	return slices.ContainsFunc(t.box.dead, func(l *backends.InboxDead) bool { return same(&l.Delivery, d) }), nil
}

// PassOver implements [inboxes.Letters].
func (t *inboxTx) PassOver(_ context.Context, key backends.InboxKey, from, to int64) error {
	add(t, &t.box.skipped, &skip{key, from, to})
	return nil
}

// Skipped implements [inboxes.Letters].
func (t *inboxTx) Skipped(_ context.Context, key backends.InboxKey, sequence int64) (bool, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	return slices.ContainsFunc(t.box.skipped, func(s *skip) bool {
		return s.InboxKey == key && s.from <= sequence && sequence <= s.to
	}), nil
}

// Letter implements [inboxes.Dead].
func (t *inboxTx) Letter(_ context.Context, id int64) (backends.InboxDead, bool, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for _, l := range t.box.dead {
		if l.ID == id {
			return *l, true, nil
		}
	}
	return backends.InboxDead{}, false, nil
}

// of lists the dead letters of an aggregate above a sequence, by sequence.
func (b *inbox) of(key backends.InboxKey, above int64) []backends.InboxDead {
	var out []backends.InboxDead
	for _, l := range b.dead {
		if l.InboxKey == key && l.Sequence > above {
			out = append(out, *l)
		}
	}
	slices.SortStableFunc(out, func(a, b backends.InboxDead) int {
		return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Head implements [inboxes.Dead].
func (t *inboxTx) Head(_ context.Context, key backends.InboxKey, above int64) (id, highest int64, err error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	all := t.box.of(key, above)
	if len(all) == 0 {
		return 0, 0, nil
	}
	return all[0].ID, all[len(all)-1].Sequence, nil
}

// Exhume implements [inboxes.Dead].
func (t *inboxTx) Exhume(ctx context.Context, key backends.InboxKey, above int64) (n int, err error) {
	t.store.mu.Lock()
	all := t.box.of(key, above)
	t.store.mu.Unlock()
	last := above
	for _, l := range all {
		if l.Sequence == last {
			continue // another has its place: it stays, to be looked at
		}
		last = l.Sequence
		if err := t.Hold(ctx, &l.Delivery); err != nil {
			return n, err
		}
		if _, err := t.Destroy(ctx, key, 0, l.ID); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Destroy implements [inboxes.Dead].
func (t *inboxTx) Destroy(_ context.Context, key backends.InboxKey, above, id int64) (int, error) {
	return take(t, &t.box.dead, func(l *backends.InboxDead) bool {
		return l.ID == id || id == 0 && l.InboxKey == key && l.Sequence > above
	}), nil
}

// CountFailure implements [inboxes.Failures].
func (t *inboxTx) CountFailure(_ context.Context, d *backends.Delivery, _ string) (attempts int, err error) {
	key := markKey{d.Topic, d.MessageID}
	t.change(func() func() {
		old, there := t.box.failures[key]
		attempts = old.attempts + 1
		t.box.failures[key] = inboxFailure{d.InboxKey, d.Sequence, attempts, time.Now()}
		return func() {
			if t.box.failures[key] = old; !there {
				delete(t.box.failures, key)
			}
		}
	})
	return attempts, nil
}

// Forget implements [inboxes.Failures].
func (t *inboxTx) Forget(_ context.Context, d *backends.Delivery) error {
	t.forget(func(k markKey, _ inboxFailure) bool { return k == markKey{d.Topic, d.MessageID} })
	return nil
}

// ForgetAll implements [inboxes.Failures].
func (t *inboxTx) ForgetAll(_ context.Context, key backends.InboxKey) error {
	t.forget(func(_ markKey, f inboxFailure) bool { return f.InboxKey == key })
	return nil
}

func (t *inboxTx) forget(which func(markKey, inboxFailure) bool) {
	t.change(func() func() {
		gone := map[markKey]inboxFailure{}
		maps.DeleteFunc(t.box.failures, func(k markKey, f inboxFailure) bool {
			if which(k, f) {
				gone[k] = f
				return true
			}
			return false
		})
		return func() { maps.Copy(t.box.failures, gone) }
	})
}

// Failing implements [inboxes.Failures].
func (t *inboxTx) Failing(_ context.Context, key backends.InboxKey, above, below int64, within time.Duration) (bool, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for _, f := range t.box.failures {
		if f.InboxKey == key && f.sequence > above && f.sequence < below && time.Since(f.at) < within {
			return true, nil
		}
	}
	return false, nil
}
