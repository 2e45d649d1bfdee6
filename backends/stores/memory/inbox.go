package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
)

var _ backends.Inboxes = (*Store)(nil)

// Inbox implements [backends.Inboxes]. The handler gets a *Tx, see
// [TxFromContext], which refuses to be ended.
func (s *Store) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	if err := inboxes.CheckConfig("memory", cfg); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.inboxes[cfg.Name]
	if box == nil {
		box = &inbox{
			locks: map[any]chan struct{}{}, rows: map[backends.InboxKey]*inboxRow{}, seen: map[backends.InboxKey]*inboxRow{}, marks: map[markKey]time.Time{},
			failures: map[markKey]inboxFailure{},
		}
		if s.inboxes == nil {
			s.inboxes = map[string]*inbox{}
		}
		s.inboxes[cfg.Name] = box
	}
	source := inboxSource{s, box, cfg}
	return &inboxes.Inbox{Source: source, Lists: source, Config: cfg}, nil
}

// inbox is the state of one. The store's mu guards it; what a row or mark holds is
// its lock's holder's to change.
type inbox struct {
	locks    map[any]chan struct{}
	rows     map[backends.InboxKey]*inboxRow
	seen     map[backends.InboxKey]*inboxRow // as committed
	marks    map[markKey]time.Time
	failures map[markKey]inboxFailure
	buffer   []*held
	dead     []*backends.InboxDead
	skipped  []*skip
	lastID   int64
}

type inboxRow struct {
	inboxes.Row
	moved, parkedAt time.Time
}

type markKey struct{ topic, id string }

type held struct {
	backends.Delivery
	at time.Time
}

type inboxFailure struct {
	backends.InboxKey
	sequence int64
	attempts int
	at       time.Time
}

type skip struct {
	backends.InboxKey
	from, to int64
}

type inboxSource struct {
	store *Store
	box   *inbox
	cfg   backends.InboxConfig
}

// Check implements [inboxes.Source].
func (inboxSource) Check(ctx context.Context) error { return ctx.Err() }

// Blameless implements [inboxes.Source].
func (inboxSource) Blameless(err error) bool { return errors.Is(err, errLockTimeout) }

// Begin implements [inboxes.Source].
func (s inboxSource) Begin(ctx context.Context) (inboxes.Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tx := s.store.Begin()
	tx.guarded = true
	return &inboxTx{inboxSource: s, tx: tx}, nil
}

// inboxTx writes at once, under locks, and takes it back if it is rolled back.
type inboxTx struct {
	inboxSource
	tx   *Tx
	held []any
	undo []func()
}

// Context implements [inboxes.Native].
func (t *inboxTx) Context(ctx context.Context) context.Context { return WithTx(ctx, t.tx) }

// Publish implements [inboxes.Native].
func (t *inboxTx) Publish(_ context.Context, topic string, msgs ...*message.Message) error {
	return t.tx.publish(topic, msgs)
}

// Commit implements [inboxes.Native].
func (t *inboxTx) Commit(context.Context) error { return t.end(true) }

// Rollback implements [inboxes.Native].
func (t *inboxTx) Rollback(context.Context) error { return t.end(false) }

func (t *inboxTx) end(keep bool) error {
	err := t.tx.end(keep)
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	if !keep || err != nil {
		for i := range t.undo {
			t.undo[len(t.undo)-1-i]()
		}
	}
	t.undo = nil
	for _, key := range t.held {
		if k, ok := key.(backends.InboxKey); ok && t.box.rows[k] != nil {
			t.box.seen[k] = t.box.rows[k]
		}
		t.box.locks[key] <- struct{}{}
	}
	t.held = nil
	return err
}

// hold takes a lock until the transaction ends. Without wait it is not waited for.
func (t *inboxTx) hold(ctx context.Context, key any, wait bool) (bool, error) {
	for _, k := range t.held {
		if k == key {
			return true, nil
		}
	}
	t.store.mu.Lock()
	lock := t.box.locks[key]
	if lock == nil {
		lock = make(chan struct{}, 1)
		lock <- struct{}{}
		t.box.locks[key] = lock
	}
	t.store.mu.Unlock()
	if !wait {
		select {
		case <-lock:
			t.held = append(t.held, key)
			return true, nil
		default:
			return false, nil
		}
	}
	timeout := t.cfg.LockTimeout
	if timeout == 0 {
		timeout = lockTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errLockTimeout)
	defer cancel()
	select {
	case <-lock:
		t.held = append(t.held, key)
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("memory: inbox: %w", context.Cause(ctx))
	}
}

// change makes a change and remembers how to take it back.
func (t *inboxTx) change(do func() (undo func())) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	t.undo = append(t.undo, do())
}

// Advance implements [inboxes.Rows]: here the long way is as short.
func (t *inboxTx) Advance(context.Context, *backends.Delivery, bool, bool) (inboxes.Step, bool, error) {
	return inboxes.Step{}, false, nil
}

// Lock implements [inboxes.Rows].
func (t *inboxTx) Lock(ctx context.Context, key backends.InboxKey, wait bool) (inboxes.Row, bool, error) {
	t.store.mu.Lock()
	row := t.box.rows[key]
	t.store.mu.Unlock()
	if row == nil {
		return inboxes.Row{}, false, nil
	}
	if ok, err := t.hold(ctx, key, wait); err != nil || !ok {
		return inboxes.Row{}, false, err
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	if row = t.box.rows[key]; row == nil { // who inserted it has taken it back
		return inboxes.Row{}, false, nil
	}
	r := row.Row
	r.Moved = time.Since(row.moved)
	return r, true, nil
}

// Insert implements [inboxes.Rows].
func (t *inboxTx) Insert(ctx context.Context, key backends.InboxKey) (bool, error) {
	if _, err := t.hold(ctx, key, true); err != nil {
		return false, err
	}
	fresh := false
	t.change(func() func() {
		if t.box.rows[key] != nil {
			return func() {}
		}
		fresh = true
		t.box.rows[key] = &inboxRow{Row: inboxes.Row{InboxKey: key, Started: 1}, moved: time.Now()}
		return func() { delete(t.box.rows, key) }
	})
	return fresh, nil
}

// Save implements [inboxes.Rows].
func (t *inboxTx) Save(_ context.Context, row inboxes.Row, moved bool) error {
	t.change(func() func() {
		old := t.box.rows[row.InboxKey]
		next := &inboxRow{Row: row, moved: old.moved, parkedAt: old.parkedAt}
		if moved {
			next.moved = time.Now()
		}
		if old.Parked == "" {
			next.parkedAt = time.Now()
		}
		t.box.rows[row.InboxKey] = next
		return func() { t.box.rows[row.InboxKey] = old }
	})
	return nil
}

// Mark implements [inboxes.Marks].
func (t *inboxTx) Mark(ctx context.Context, topic, id string) (bool, error) {
	key := markKey{topic, id}
	if _, err := t.hold(ctx, key, true); err != nil {
		return false, err
	}
	fresh := false
	t.change(func() func() {
		if _, known := t.box.marks[key]; known {
			return func() {}
		}
		fresh = true
		t.box.marks[key] = time.Now()
		return func() { delete(t.box.marks, key) }
	})
	return fresh, nil
}

// Marked implements [inboxes.Marks].
func (t *inboxTx) Marked(_ context.Context, topic, id string) (time.Duration, bool, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	at, known := t.box.marks[markKey{topic, id}]
	if !known {
		return 0, false, nil
	}
	return max(time.Since(at), 1), true, nil
}

// Unmark implements [inboxes.Marks].
func (t *inboxTx) Unmark(ctx context.Context, topic, id string) error {
	key := markKey{topic, id}
	if _, err := t.hold(ctx, key, true); err != nil {
		return err
	}
	t.change(func() func() {
		at, known := t.box.marks[key]
		delete(t.box.marks, key)
		return func() {
			if known {
				t.box.marks[key] = at
			}
		}
	})
	return nil
}
