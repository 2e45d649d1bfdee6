package backends

import (
	"errors"
	"fmt"
)

// Errors that callers branch on.
var (
	// ErrNoTransaction comes from a publisher that takes its transaction from the
	// message's context, where there is none, or one of another store.
	ErrNoTransaction = errors.New("no transaction of this store in the message's context")

	// ErrTransactionDone comes from a publisher whose transaction has been
	// committed or rolled back, or was aborted by an earlier error.
	ErrTransactionDone = errors.New("the transaction has ended")

	// ErrLeaseLost comes from Settle when a shard is held by another owner, or
	// was since.
	ErrLeaseLost = errors.New("the lease on a shard was lost")

	// ErrSchema says that the tables are missing, or of a version that this
	// program does not know. The error that wraps it says what to run.
	ErrSchema = errors.New("the outbox's tables are not as this version needs them")

	// ErrClosed comes from a store or broker that has been closed.
	ErrClosed = errors.New("closed")

	// ErrInboxTransaction comes from ending a transaction that an inbox gave to a
	// handler: it ends when the handler returns.
	ErrInboxTransaction = errors.New("the transaction belongs to the inbox")

	// ErrParked comes from requeueing a single record out of the middle of a
	// parked aggregate, which would break its order.
	ErrParked = errors.New("the record's aggregate is parked: requeue the aggregate, or discard its first record")

	// ErrNotFound comes from a call that names a dead letter or parked aggregate
	// that is not there.
	ErrNotFound = errors.New("no such dead letter")
)

// Class says how a failed publish is to be taken.
type Class uint8

const (
	// Retryable is any error that says nothing else: it counts as an attempt.
	Retryable Class = iota
	// PermanentFailure: this record will never be accepted as it is.
	PermanentFailure
	// UnavailableFailure: the broker, or a topic of it, cannot be reached. No record is to
	// blame, so it counts as no attempt.
	UnavailableFailure
)

// String returns the class in lower case.
func (c Class) String() string {
	names := [...]string{"retryable", "permanent", "unavailable"}
	if int(c) >= len(names) {
		c = 0
	}
	return names[c]
}

type classified struct {
	err   error
	class Class
}

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.err }

// Permanent marks an error: this record will never be accepted as it is.
// Permanent(nil) is nil.
func Permanent(err error) error { return classify(err, PermanentFailure) }

// Unavailable marks an error: nobody can be reached, no record is to blame.
// Unavailable(nil) is nil.
func Unavailable(err error) error { return classify(err, UnavailableFailure) }

func classify(err error, class Class) error {
	if err == nil {
		return nil
	}
	return &classified{err: err, class: class}
}

// ClassOf returns the class that [Permanent] or [Unavailable] gave an error, the
// outermost if several did, and Retryable otherwise.
func ClassOf(err error) Class {
	var c *classified
	if errors.As(err, &c) {
		return c.class
	}
	return Retryable
}

// MessageError says what is wrong with one message given to a publisher. It
// never holds a payload or a metadata value. A publisher reports all faults of
// all messages at once, joined.
type MessageError struct {
	Index     int    // in the call to Publish
	MessageID string // empty where that is what is wrong
	Field     string // such as "topic", "aggregate", "metadata[key]"
	Problem   string // such as "is empty", "has 300 bytes, at most 255 are allowed"
	Remedy    string // what to do
}

// Error names the message, the field, the fault and the remedy.
func (e *MessageError) Error() string {
	return fmt.Sprintf("message %d (%q): %s %s: %s", e.Index, e.MessageID, e.Field, e.Problem, e.Remedy)
}
