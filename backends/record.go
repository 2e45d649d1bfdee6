package backends

import (
	"iter"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Shards is how many shards an outbox has. Every aggregate belongs to one,
// and a shard has one owner at a time. It is part of what is stored, so it can
// never change for an existing outbox.
const Shards = 64

// Ref names one record of an outbox.
type Ref struct {
	Shard int
	ID    int64
}

// Record is one row of the outbox: a message as it was appended.
//
// Payload and Metadata belong to the batch that they were read with. Whoever
// needs them after the call that received them must copy them.
type Record struct {
	Ref

	MessageID string // Watermill's UUID, chosen by the application
	Topic     string
	Aggregate string // what order is kept within; empty: no order asked for
	Sequence  int64  // gap-free within Topic and Aggregate, from 1; 0: none
	Payload   []byte
	Metadata  message.Metadata // without the reserved keys

	CreatedAt time.Time     // when it was appended, by the database's clock, UTC
	Age       time.Duration // how long ago that was when it was read, by the same clock
	Attempts  int           // counted failures so far
}

// Headers yields what a broker carries beside the payload: the metadata as the
// application set it, then the reserved keys that the outbox adds.
func (r *Record) Headers() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for k, v := range r.Metadata {
			if !yield(k, v) {
				return
			}
		}
		if r.Aggregate != "" && !yield(AggregateKey, r.Aggregate) {
			return
		}
		if r.Sequence != 0 && !yield(SequenceKey, strconv.FormatInt(r.Sequence, 10)) {
			return
		}
		if !yield(TopicKey, r.Topic) {
			return
		}
		yield(CreatedAtKey, r.CreatedAt.UTC().Format(time.RFC3339Nano))
	}
}

// Message returns the record as a Watermill message with the headers of
// [Record.Headers] as metadata. Its payload is the record's own slice.
func (r *Record) Message() *message.Message {
	m := message.NewMessage(r.MessageID, r.Payload)
	m.Metadata = make(message.Metadata, len(r.Metadata)+4)
	for k, v := range r.Headers() {
		m.Metadata[k] = v
	}
	return m
}
