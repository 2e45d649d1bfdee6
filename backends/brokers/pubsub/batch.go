package pubsub

import (
	"bytes"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// batch collects the answers of one Publish. When it is closed, calls may still
// hang: what they come to later is not looked at, and nothing more is sent.
type batch struct {
	records []backends.Record

	mu      sync.Mutex
	closed  bool
	cause   error           // why it was closed
	state   []state         // of each record
	errs    []error         // of those that failed
	failed  map[string]bool // aggregates of which a record failed
	blocked map[string]bool // topics that cannot be reached
}

type state uint8

const (
	waiting state = iota
	sending
	accepted
	rejected
	behind // a failure of its aggregate or topic
)

func newBatch(records []backends.Record) *batch {
	return &batch{
		records: records, state: make([]state, len(records)), errs: make([]error, len(records)),
		failed: map[string]bool{}, blocked: map[string]bool{},
	}
}

// start says what to do with a record: publish it as this message, pass it over
// (nil), or stop. The message holds nothing of the record's: records are the
// caller's again once the batch is closed, and some publishers keep messages.
func (b *batch) start(i int) (topic string, m *message.Message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return "", nil, false
	}
	r := &b.records[i]
	if r.Aggregate != "" && b.failed[r.Aggregate] || b.blocked[r.Topic] {
		b.state[i] = behind
		b.failed[r.Aggregate] = true
		return "", nil, true
	}
	b.state[i] = sending
	m = r.Message()
	m.Payload = bytes.Clone(m.Payload)
	return r.Topic, m, true
}

func (b *batch) end(i int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if err == nil {
		b.state[i] = accepted
		return
	}
	b.state[i], b.errs[i] = rejected, err
	b.failed[b.records[i].Aggregate] = true
	if backends.ClassOf(err) == backends.UnavailableFailure {
		b.blocked[b.records[i].Topic] = true
	}
}

// refuse answers for records that are not even tried.
func (b *batch) refuse(indexes []int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range indexes {
		if !b.closed {
			b.state[i], b.errs[i] = behind, err
		}
	}
}

// close ends the batch and returns the records whose calls have not returned.
func (b *batch) close(cause error) (hung []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.cause = true, cause
	for i, s := range b.state {
		if s == sending {
			hung = append(hung, i)
		}
	}
	return hung
}

func (b *batch) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *batch) answer() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var failures []backends.Failure
	for i, s := range b.state {
		f := backends.Failure{Index: i, Err: b.errs[i]}
		switch s {
		case accepted:
			continue
		case rejected:
			f.State = backends.Rejected
		case sending:
			f.State, f.Err = backends.Unknown, b.cause
		case waiting, behind:
			f.State = backends.NotSent
			if f.Err == nil {
				f.Err = b.behindWhat(i)
			}
		}
		failures = append(failures, f)
	}
	if failures == nil {
		return nil
	}
	return &backends.PartialError{Failures: failures}
}

func (b *batch) behindWhat(i int) error {
	switch {
	case b.blocked[b.records[i].Topic]:
		return errTopic
	case b.state[i] == waiting && b.cause != nil:
		return b.cause
	}
	return errBehind
}
