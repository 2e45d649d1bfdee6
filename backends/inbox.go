package backends

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Inboxes is the ability of a store to keep inboxes.
type Inboxes interface {
	// Inbox returns the inbox of a name. It makes nothing and connects to nothing.
	Inbox(cfg InboxConfig) (Inbox, error)
}

// InboxConfig says which inbox of a store is meant and how it works.
type InboxConfig struct {
	// Name keeps inboxes of a store apart: 1 to 255 bytes.
	Name string
	// Retention is how long the ids of handled messages are kept.
	Retention time.Duration
	// NoMarks keeps no ids of messages that have a sequence, which tells by itself
	// whether a message was handled.
	NoMarks bool
	// LockTimeout limits the wait for another transaction that holds an aggregate.
	LockTimeout time.Duration
	// IdleTimeout ends a transaction whose handler leaves it alone for so long,
	// where the database can: what a dead process held is free after it. 0: never.
	IdleTimeout time.Duration
}

// Inbox is the database side of a consumer: it knows what has been handled, and
// lets the handler's writes and that knowledge be committed together. The lock
// that everything rests on is that of an aggregate within a topic.
//
// An Inbox is safe for concurrent use. Where it is asked for an optional ability
// ([InboxUpkeep], [InboxDeadLetters]), type assertion tells.
type Inbox interface {
	// Check tells whether the inbox can be used as it stands ([ErrSchema] where a
	// migration is due).
	Check(ctx context.Context) error

	// Begin begins a transaction, takes the aggregate's lock, and says where the
	// delivery stands. Where that is [Fresh], it is marked as handled in that
	// transaction and a copy of it in the buffer is gone. The caller ends the
	// transaction in any case. The delivery must not change before it has.
	Begin(ctx context.Context, d *Delivery, order InboxOrder) (InboxTx, Standing, error)

	// Next begins a transaction, takes the aggregate's lock, then looks for the
	// delivery in the buffer that is next, and takes it out as Begin does. Without
	// one, or where wait is false and another transaction has the lock, there is no
	// transaction either. [Moved] is an answer as by Begin.
	//
	// With an empty aggregate it takes any delivery that was requeued by itself.
	Next(ctx context.Context, key InboxKey, wait bool) (InboxTx, *Delivery, Standing, error)

	// Fail records in a transaction of its own that a handler failed.
	Fail(ctx context.Context, d *Delivery, order InboxOrder, f InboxFailure) (InboxFailed, error)

	// Blameless reports whether an error is the database's, not the handler's: a
	// deadlock, a conflict of transactions, a server that shuts down.
	Blameless(err error) bool
}

// InboxKey names what an inbox keeps in order. Aggregate may be empty.
type InboxKey struct {
	Topic, Aggregate string
}

// Delivery is a message as it reached a consumer.
type Delivery struct {
	InboxKey

	MessageID string
	Sequence  int64 // 0: none
	Payload   []byte
	Metadata  message.Metadata // all of it
	// ReplyTopic is where what the handler returns is published.
	ReplyTopic string
	// Age is how long ago the message was made; 0: not known.
	Age time.Duration
}

// InboxOrder says which deliveries of an aggregate may be handled.
type InboxOrder uint8

const (
	// AnyOrder: each message once, by its id.
	AnyOrder InboxOrder = iota
	// InSequence: the one after the last, and nothing else.
	InSequence
	// Newer: any after the last.
	Newer
)

// Place is where a delivery stands.
type Place uint8

const (
	// Fresh: it is to be handled in this transaction.
	Fresh Place = iota + 1
	// Duplicate: it was handled or taken in before.
	Duplicate
	// Moved: its id was handled before, but not in its place. The transaction
	// moves the sequence on and is to be committed without the handler.
	Moved
	// Stale: one after it was handled, and order is Newer.
	Stale
	// Ahead: one before it is missing.
	Ahead
	// Parked: its aggregate is set aside, and it belongs to the dead letters.
	Parked
	// Refused: it can never be handled, and belongs to the dead letters; see
	// Standing.Reason.
	Refused
)

// String returns the place in lower case.
func (p Place) String() string {
	names := [...]string{"invalid", "fresh", "duplicate", "moved", "stale", "ahead", "parked", "refused"}
	if int(p) >= len(names) {
		p = 0
	}
	return names[p]
}

// Reasons for a dead letter of an inbox.
const (
	ReasonReused    = "sequence_reused"    // another message has its sequence
	ReasonBefore    = "before_start"       // before the first that was handled of its aggregate
	ReasonLate      = "late_after_skip"    // its place was skipped
	ReasonParked    = "parked"             // its aggregate was set aside before
	ReasonAttempts  = "attempts_exhausted" // its handler failed too often
	ReasonPermanent = "permanent"          // its handler said that it never will succeed
	ReasonGap       = "gap"                // those before it did not come
	ReasonFull      = "buffer_full"        // too many waited
	ReasonNoID      = "no_message_id"      // it has no id that can be stored
)

// Standing is where a delivery stands, and what is known of its aggregate.
type Standing struct {
	Place    Place
	Reason   string        // Refused and Parked: a Reason constant
	Expected int64         // the sequence that is next
	Buffered int           // how many of the aggregate wait in the buffer
	Age      time.Duration // Duplicate: how long ago it was handled; 0: not known
}

// InboxTx is the transaction of one delivery. It is not safe for concurrent use.
type InboxTx interface {
	// Context returns a context with the database's own transaction in it, as the
	// store's TxFromContext finds it.
	Context(ctx context.Context) context.Context

	// Publish appends to the outbox in this transaction.
	Publish(ctx context.Context, topic string, msgs ...*message.Message) error

	// SetAside stores a delivery that is not to be handled now: without a reason
	// in the buffer, where it waits for those before it; with one among the dead
	// letters.
	SetAside(ctx context.Context, reason string) error

	// Commit ends the transaction. [ErrTransactionDone] says that the handler has
	// ended it, or has broken it by a failed statement. After any other error it
	// is not known whether it took effect.
	Commit(ctx context.Context) error

	// Rollback ends the transaction. An error says that the connection was lost,
	// with which the database does the same.
	Rollback(ctx context.Context) error
}

// InboxFailure is a failure of a handler.
type InboxFailure struct {
	Err    error  // its text is stored, cut to 512 bytes
	Limit  int    // the attempt at which the message is given up; 0: never
	Reason string // for the dead letter
	// Undo takes back what was marked, where the handler has committed the
	// transaction itself.
	Undo bool
}

// InboxFailed is what became of a failed delivery.
type InboxFailed struct {
	Attempts int
	// GivenUp: it is a dead letter now. InSequence, its aggregate is parked.
	GivenUp bool
	// Overtaken: it was handled by another in the meantime.
	Overtaken bool
}

// InboxUpkeep is what an inbox needs done from time to time. Without it nothing
// that is buffered is sure to be handled.
type InboxUpkeep interface {
	// Waiting lists aggregates with something in the buffer, by name, after the
	// one given.
	Waiting(ctx context.Context, after InboxKey, limit int) ([]InboxWaiting, error)

	// Resolve ends a gap, if it is as old as minAge, and if nothing before it is
	// being handled or has failed within that time. It reports whether it did.
	Resolve(ctx context.Context, key InboxKey, how GapAction, minAge time.Duration) (bool, error)

	// Purge removes ids that are past their retention, at most limit in one short
	// transaction, and returns how many it removed.
	Purge(ctx context.Context, limit int) (int, error)

	// Backlog measures what waits. Its cost is bounded.
	Backlog(ctx context.Context) (InboxBacklog, error)
}

// InboxWaiting is an aggregate with something in the buffer.
type InboxWaiting struct {
	InboxKey

	Last     int64         // handled
	Lowest   int64         // buffered; where that is Last+1, Next has something
	Buffered int           // how many
	Age      time.Duration // since when nothing has moved
	First    bool          // nothing of it was handled yet
}

// GapAction says how a gap ends.
type GapAction uint8

const (
	// GapAdopt starts an aggregate of which nothing was handled at the lowest
	// that has come.
	GapAdopt GapAction = iota + 1
	// GapSkip goes on after what is missing.
	GapSkip
	// GapPark sets the aggregate aside.
	GapPark
	// GapFull sets the aggregate aside since too many wait.
	GapFull
)

// InboxBacklog is what waits in an inbox.
type InboxBacklog struct {
	Buffered int64
	Age      time.Duration // of the oldest in the buffer
	Parked   int64         // aggregates
	Dead     int64         // dead letters
	Capped   bool          // counting stopped at a bound
}

// InboxDeadLetters is an optional ability of an [Inbox]: to show what was given
// up and to do something about it. All of it is safe beside running consumers.
type InboxDeadLetters interface {
	// Parked lists parked aggregates by topic and name, after the one given.
	Parked(ctx context.Context, after InboxKey, limit int) ([]InboxParked, error)

	// Dead lists dead letters by id.
	Dead(ctx context.Context, filter InboxDeadFilter) ([]InboxDead, error)

	// Requeue gives dead letters back to the handler and returns how many: of a
	// parked aggregate all, in the order of their sequence; or a single one, which
	// must not be of a parked aggregate ([ErrParked]) and is handled by itself.
	// Their failures are forgotten.
	Requeue(ctx context.Context, target InboxTarget) (int, error)

	// Discard drops dead letters for good and returns how many: of a parked
	// aggregate all, which goes on after the last of them; or a single one. If it
	// was the first of a parked aggregate, the aggregate goes on after it and the
	// rest is requeued; another one of a parked aggregate is [ErrParked].
	Discard(ctx context.Context, target InboxTarget) (int, error)
}

// InboxTarget names dead letters: those of an aggregate, or one by its id.
// Exactly one is set.
type InboxTarget struct {
	Key InboxKey
	ID  int64
}

// InboxDeadFilter narrows a list of dead letters. Its zero value asks for the
// first hundred.
type InboxDeadFilter struct {
	Topic     string // empty: all
	Aggregate string // empty: all
	After     int64  // go on after this id
	Limit     int    // 0: 100
}

// InboxParked is an aggregate that was set aside.
type InboxParked struct {
	InboxKey

	ParkedAt time.Time
	Last     int64  // handled
	Letters  int64  // dead letters of it so far, counted to 1,000 at most
	Reason   string // a Reason constant
}

// InboxDead is a dead letter of an inbox.
type InboxDead struct {
	Delivery

	ID        int64
	DeadAt    time.Time
	Attempts  int
	Reason    string // a Reason constant
	LastError string // at most 512 bytes, no payload
}
