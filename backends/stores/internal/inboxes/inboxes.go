// Package inboxes holds what every store's inbox does alike: the decisions that
// are taken under an aggregate's lock. A store supplies a transaction ([Tx]);
// those that speak SQL find most of it in [SQL].
package inboxes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Tx is a transaction on an inbox. What it locks stays locked until its end.
type Tx interface {
	Rows
	Marks
	Buffer
	Letters
	Failures

	Native
}

// Native is the store's own side of a transaction.
type Native interface {
	Context(ctx context.Context) context.Context
	Publish(ctx context.Context, topic string, msgs ...*message.Message) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Row is the state of an aggregate, and its lock.
type Row struct {
	backends.InboxKey

	Started   int64 // the first that counts
	Last      int64 // handled
	MessageID string
	Buffered  int
	Parked    string        // why it was set aside; empty: it is not
	Moved     time.Duration // how long ago Last changed
}

// Rows are the states of aggregates.
type Rows interface {
	// Advance is the usual case in as few statements as can be: if the row is
	// there, not parked, and at the sequence before (newer: any before), it is
	// locked and moved on, and the id is marked. ok is false otherwise.
	Advance(ctx context.Context, d *backends.Delivery, newer, mark bool) (step Step, ok bool, err error)
	// Lock locks a row and then reads it. Without wait, one that is locked by
	// another is not found.
	Lock(ctx context.Context, key backends.InboxKey, wait bool) (row Row, found bool, err error)
	// Insert adds a row, locked, with Started 1 and Last 0; ok is false if there
	// was one already, perhaps after a wait.
	Insert(ctx context.Context, key backends.InboxKey) (ok bool, err error)
	// Save writes a locked row. Moved is set to now where moved is true.
	Save(ctx context.Context, row Row, moved bool) error
}

// Step is what Advance found.
type Step struct {
	Buffered int
	Fresh    bool // the id was not marked before
}

// Marks are the ids of handled messages.
type Marks interface {
	// Mark adds an id; fresh is false if it was there, perhaps after a wait.
	Mark(ctx context.Context, topic, id string) (fresh bool, err error)
	Marked(ctx context.Context, topic, id string) (ago time.Duration, known bool, err error)
	Unmark(ctx context.Context, topic, id string) error
}

// Buffer holds deliveries that wait for those before them.
type Buffer interface {
	// Held returns the delivery with a sequence; with sequence 0 any that was
	// requeued by itself and that nobody else has locked.
	Held(ctx context.Context, key backends.InboxKey, sequence int64) (d *backends.Delivery, ok bool, err error)
	Hold(ctx context.Context, d *backends.Delivery) error
	Drop(ctx context.Context, d *backends.Delivery) (int, error)
	// Lowest is the lowest sequence held and how long ago the oldest came.
	Lowest(ctx context.Context, key backends.InboxKey) (sequence int64, age time.Duration, ok bool, err error)
	// BuryHeld moves all of an aggregate to the dead letters, for ReasonParked.
	BuryHeld(ctx context.Context, key backends.InboxKey) error
}

// Letters are the dead letters and the ranges that were skipped.
type Letters interface {
	Bury(ctx context.Context, d *backends.Delivery, attempts int, reason, text string) error
	Buried(ctx context.Context, d *backends.Delivery) (bool, error)
	PassOver(ctx context.Context, key backends.InboxKey, from, to int64) error
	Skipped(ctx context.Context, key backends.InboxKey, sequence int64) (bool, error)
	Dead
}

// Dead is what operators do to dead letters.
type Dead interface {
	// Letter reads one.
	Letter(ctx context.Context, id int64) (l backends.InboxDead, found bool, err error)
	// Head is the id of the one with the lowest sequence of an aggregate above
	// a sequence, and the highest sequence.
	Head(ctx context.Context, key backends.InboxKey, above int64) (id, highest int64, err error)
	// Exhume moves dead letters of an aggregate above a sequence to the buffer, one
	// for each sequence that is not there yet, and returns how many.
	Exhume(ctx context.Context, key backends.InboxKey, above int64) (int, error)
	// Destroy removes one, or with id 0 those of an aggregate above a sequence.
	Destroy(ctx context.Context, key backends.InboxKey, above, id int64) (int, error)
}

// Failures count what handlers could not do.
type Failures interface {
	CountFailure(ctx context.Context, d *backends.Delivery, text string) (attempts int, err error)
	Forget(ctx context.Context, d *backends.Delivery) error
	ForgetAll(ctx context.Context, key backends.InboxKey) error
	// Failing reports a failure within a time of a sequence between two, both
	// excluded.
	Failing(ctx context.Context, key backends.InboxKey, above, below int64, within time.Duration) (bool, error)
}

// Source is a store as an inbox needs it.
type Source interface {
	// Begin begins a transaction that can do what it needs to.
	Begin(ctx context.Context) (Tx, error)
	Check(ctx context.Context) error
	Blameless(err error) bool
}

// Starter is an optional ability of a [Source]: to begin a transaction and advance
// (see [Rows]), or mark where the order is AnyOrder, in one round trip. ok is false
// where that was not done.
type Starter interface {
	Start(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (tx Tx, step Step, ok bool, err error)
}

// Inbox is a [backends.Inbox] over a store's transactions. Lists complete it.
type Inbox struct {
	Source
	Lists

	Config backends.InboxConfig
}

// Lists are what an inbox reads without a lock.
type Lists interface {
	Waiting(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxWaiting, error)
	Purge(ctx context.Context, limit int) (int, error)
	Backlog(ctx context.Context) (backends.InboxBacklog, error)
	Parked(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxParked, error)
	Dead(ctx context.Context, filter backends.InboxDeadFilter) ([]backends.InboxDead, error)
}

// The abilities of every inbox.
var (
	_ backends.InboxUpkeep      = (*Inbox)(nil)
	_ backends.InboxDeadLetters = (*Inbox)(nil)
)

// CheckConfig reports every fault of a configuration, under a store's name.
func CheckConfig(store string, cfg backends.InboxConfig) error {
	var faults []error
	if n := len(cfg.Name); n == 0 || n > records.MaxNameBytes {
		faults = append(faults, fmt.Errorf("%s: inbox: Name has %d bytes, allowed is 1 to %d", store, n, records.MaxNameBytes))
	}
	for name, d := range map[string]time.Duration{"Retention": cfg.Retention, "LockTimeout": cfg.LockTimeout, "IdleTimeout": cfg.IdleTimeout} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s: inbox: %s is %v, allowed is 0 or more", store, name, d))
		}
	}
	return errors.Join(faults...)
}

// within runs a transaction of the inbox's own and commits it if keep is true.
func (i *Inbox) within(ctx context.Context, do func(tx Tx) (keep bool, err error)) error {
	tx, err := i.Source.Begin(ctx)
	if err != nil {
		return err
	}
	keep, err := do(tx)
	whole := context.WithoutCancel(ctx)
	if err != nil || !keep {
		return errors.Join(err, tx.Rollback(whole))
	}
	return tx.Commit(whole)
}

// transaction is a backends.InboxTx.
type transaction struct {
	Native

	tx       Tx
	delivery *backends.Delivery
	row      Row
}

// SetAside implements [backends.InboxTx].
func (t *transaction) SetAside(ctx context.Context, reason string) error {
	if reason != "" {
		return t.tx.Bury(ctx, t.delivery, 0, reason, "")
	}
	if err := t.tx.Hold(ctx, t.delivery); err != nil {
		return err
	}
	t.row.Buffered++
	return t.tx.Save(ctx, t.row, false)
}
