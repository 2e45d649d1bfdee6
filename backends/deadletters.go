package backends

import (
	"context"
	"time"
)

// DeadLetters is an optional ability of an [Outbox]: to show what was given up
// and to do something about it. All of it is safe beside running forwarders.
type DeadLetters interface {
	// Parked lists parked aggregates by name, after the one given.
	Parked(ctx context.Context, after string, limit int) ([]ParkedAggregate, error)

	// Dead lists dead letters by shard and id.
	Dead(ctx context.Context, filter DeadFilter) ([]DeadLetter, error)

	// Requeue puts dead letters back into the outbox with their ids and
	// sequences, and returns how many: of an aggregate all, which is then no
	// longer parked; or a single record, which must not be of a parked aggregate
	// ([ErrParked]) and may come after records that it once preceded.
	Requeue(ctx context.Context, target DeadTarget) (int, error)

	// Discard drops dead letters for good and returns how many: of an aggregate
	// all, which is then no longer parked; or a single record. If that was the
	// first of a parked aggregate, the rest is requeued.
	Discard(ctx context.Context, target DeadTarget) (int, error)
}

// DeadTarget names dead letters: those of an aggregate, or one record.
// Exactly one field is set.
type DeadTarget struct {
	Aggregate string
	Record    *Ref
}

// DeadFilter narrows a list of dead letters. Its zero value asks for the first
// hundred.
type DeadFilter struct {
	Aggregate string        // empty: all
	Topic     string        // empty: all
	MinAge    time.Duration // given up at least so long ago
	After     Ref           // go on after this one
	Limit     int           // 0: 100
}

// ParkedAggregate is an aggregate that was set aside.
type ParkedAggregate struct {
	Aggregate string
	ParkedAt  time.Time
	Records   int64  // dead letters of it so far, counted to 1,000 at most
	Reason    string // why its first record was given up
}

// DeadLetter is a record that was given up.
type DeadLetter struct {
	Record
	DeadAt    time.Time
	LastError string // at most 512 bytes, no payload
}
