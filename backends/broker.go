package backends

import (
	"context"
	"fmt"
)

// Broker takes records and answers for each of them.
//
// A Broker is safe for concurrent use.
type Broker interface {
	// Publish sends the records and waits for the broker's durable word.
	//
	//	nil             every record is durable
	//	*PartialError   the records it lists are not, the others are
	//	other error     nothing is known of any record
	//
	// Order is kept within an aggregate: after a record that was not accepted, no
	// later record of its aggregate is. It returns when ctx ends, soon after at the latest, with what is known
	// by then. It keeps neither the slice nor what the records hold after it
	// returns, and changes neither. It never panics on account of a record.
	Publish(ctx context.Context, records []Record) error

	// Close ends the connection. It returns when ctx ends at the latest, and a
	// second call does nothing.
	Close(ctx context.Context) error
}

// State is what is known of a record that was not accepted.
type State uint8

const (
	// Rejected: the broker, or the adapter for it, refused this record.
	Rejected State = iota + 1
	// Unknown: the record may be there. It will be sent again.
	Unknown
	// NotSent: the record is not there and was not refused.
	NotSent
)

// String returns the state in words.
func (s State) String() string {
	names := [...]string{"invalid", "rejected", "unknown", "not sent"}
	if int(s) >= len(names) {
		s = 0
	}
	return names[s]
}

// Failure is the answer for one record that was not accepted.
type Failure struct {
	Index int // in the slice given to Publish
	State State
	Err   error // why; its class decides what happens next, see Permanent and Unavailable
}

// PartialError lists the records of a batch that were not accepted. Records that
// it does not list are durable.
type PartialError struct {
	Failures []Failure // ascending by Index
}

// Error counts the failures and quotes the first.
func (e *PartialError) Error() string {
	if len(e.Failures) == 0 {
		return "no record failed"
	}
	f := e.Failures[0]
	return fmt.Sprintf("%d records were not accepted, the first was %s: %v", len(e.Failures), f.State, f.Err)
}

// Unwrap returns the causes.
func (e *PartialError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failures))
	for _, f := range e.Failures {
		if f.Err != nil {
			errs = append(errs, f.Err)
		}
	}
	return errs
}
