package backends

import (
	"context"
	"slices"
	"time"
)

// Outbox is the database side of the outbox as the forwarder sees it. Appending
// is not part of it: publishers belong to a transaction, and each store has its
// own kind of transaction.
//
// An Outbox is safe for concurrent use.
type Outbox interface {
	// Check tells whether the outbox can be used as it stands: tables there, of
	// the version this program knows, and settings as they must be. Its error
	// says what to do ([ErrSchema] where a migration is due).
	Check(ctx context.Context) error

	// Lease is the heartbeat of an owner, which is the name of one forwarder. It
	// renews what the owner holds for another ttl, takes shards that nobody holds
	// up to a fair share among the owners alive, and names in Surplus what should
	// be given back. All times are the database's. Two callers never hold one
	// shard at once, save that the term of one has ended.
	Lease(ctx context.Context, owner string, ttl time.Duration) (Lease, error)

	// Release gives back the shards of a lease at once, so that another owner
	// gets them at its next heartbeat. With a lease of no shards it takes the
	// owner off the list of those alive. Shards that are no longer held under the
	// same epoch are left alone.
	Release(ctx context.Context, lease Lease) error

	// Reader returns a new reader, which starts with no memory.
	Reader() Reader

	// Backlog measures what waits. Its cost is bounded however much that is.
	Backlog(ctx context.Context) (Backlog, error)
}

// Reader hands out the records of leased shards and records what became of
// them. It keeps scan state in memory, so a worker keeps one reader for as long
// as it lives. A reader is not safe for concurrent use.
type Reader interface {
	// Read returns committed records of the leased shards that are due: in order
	// within an aggregate, never one whose earlier record is not settled, never a
	// part of what one transaction hides, fairly across shards. What it returned
	// is in hand until Settle gives it an outcome. Records in hand that an
	// outcome was not given before the next Read are released.
	//
	// Records of a parked aggregate are not returned: Read moves them to the dead
	// letters. An empty answer means that nothing is due now.
	//
	// No transaction and no lock is left behind. After an error the next Read
	// starts where the last good one ended.
	Read(ctx context.Context, lease Lease, want Want) ([]Record, error)

	// Settle records the outcomes, exactly of the records they name, in one
	// transaction. Where the lease of a shard is no longer held, [ErrLeaseLost]
	// comes back and of that shard only deliveries are recorded, which are true
	// whoever holds it. After any other error nothing is known to have been
	// recorded; the records will be read again.
	Settle(ctx context.Context, lease Lease, outcomes []Outcome) error
}

// Want is what a caller of [Reader.Read] asks for.
type Want struct {
	// Limit is how many records to return at most. It must be positive.
	Limit int
	// MaxBytes ends the answer after the record whose payload reaches it, so
	// that one record is always returned. 0: no limit.
	MaxBytes int
	// SkipTopics holds these topics back. Records of other topics go on, of the
	// same aggregates too.
	SkipTopics []string
}

// Lease is an owner's hold on shards for a term.
type Lease struct {
	Owner  string
	Shards []ShardLease // ascending by shard

	// Surplus lists held shards above the owner's fair share. The owner should
	// finish what it has of them in hand, then Release them.
	Surplus []int

	// Deadline is when the term ends, by the local monotonic clock and never
	// later than by the database's. Nothing may be published after it.
	Deadline time.Time
}

// ShardLease is one shard of a [Lease]. Epoch rises with each change of owner:
// it is what makes a late word of a former owner recognisable.
type ShardLease struct {
	Shard int
	Epoch int64
}

// Only returns the lease cut down to the shards for which keep is true.
func (l Lease) Only(keep func(shard int) bool) Lease {
	out := l
	out.Surplus = nil
	out.Shards = make([]ShardLease, 0, len(l.Shards))
	for _, s := range l.Shards {
		if keep(s.Shard) {
			out.Shards = append(out.Shards, s)
		}
	}
	return out
}

// Epoch returns the epoch under which the lease holds a shard.
func (l Lease) Epoch(shard int) (epoch int64, held bool) {
	i, ok := slices.BinarySearchFunc(l.Shards, shard, func(s ShardLease, shard int) int { return s.Shard - shard })
	if !ok {
		return 0, false
	}
	return l.Shards[i].Epoch, true
}

// Action says what became of a record.
type Action uint8

const (
	// Delivered: the broker has given its durable word. The record is removed.
	Delivered Action = iota + 1
	// Retry: the attempt failed and counts. The record, and what follows it in
	// its aggregate, is not read again before Outcome.After has passed.
	Retry
	// Park: the record is given up and its aggregate set aside. The record and
	// all later ones of its aggregate become dead letters, in order. A record
	// without an aggregate goes alone.
	Park
	// Skip: the record alone is given up and becomes a dead letter. What follows
	// it goes on.
	Skip
	// Release: nothing happened that counts. The record will be read again.
	// After is honoured as by Retry, but in memory only.
	Release
)

// String returns the action's name in lower case.
func (a Action) String() string {
	names := [...]string{"invalid", "delivered", "retry", "park", "skip", "release"}
	if int(a) >= len(names) {
		a = 0
	}
	return names[a]
}

// Outcome is what became of one record in hand.
type Outcome struct {
	Record *Record
	Action Action
	After  time.Duration // Retry and Release: not read again before
	Err    error         // Retry, Park and Skip: why; its text is stored, cut to 512 bytes
}

// Backlog is what waits in an outbox.
type Backlog struct {
	Ready   int64 // due now
	Delayed int64 // waiting for their next attempt
	Dead    int64 // dead letters
	Parked  int64 // aggregates set aside

	// Capped is true where counting stopped at a bound, so that a count may be
	// higher than it says.
	Capped bool

	OldestAge     time.Duration // how long the oldest record has waited, by the database's clock
	UnownedShards int           // shards without a living owner
	Owners        []string      // forwarders alive
}

// Waker is an optional ability of an [Outbox]: to tell cheaply whether there may
// be something new to read. It is a hint: a forwarder reads now and then
// without it.
type Waker interface {
	// Watch returns a function that reports whether records may have become
	// readable since its last call; the first call reports true. The function is
	// not safe for concurrent use.
	Watch() func(ctx context.Context) (bool, error)
}

// Pinger is an optional ability of an [Outbox] or a [Broker]: to tell whether the server
// can be reached.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Purger is an optional ability of an [Outbox] that keeps delivered records for
// a time.
type Purger interface {
	// Purge removes kept records that are past their retention, at most limit in
	// one short transaction, and returns how many it removed. It never removes
	// what is not delivered.
	Purge(ctx context.Context, limit int) (int, error)
}

// Measurer is an optional ability of an [Outbox]: to tell what an operator of its
// database wants to know beside the backlog.
type Measurer interface {
	// Measure costs little, however much waits.
	Measure(ctx context.Context) (Measures, error)
}

// Measures is what a [Measurer] tells. What an engine does not know is negative.
type Measures struct {
	// TableBytes is what the outbox's table takes on disk, with its indexes.
	TableBytes int64
	// HorizonAge is the age of the oldest transaction for whose sake the database
	// keeps rows that were removed since: reads get slower with it.
	HorizonAge time.Duration
}
