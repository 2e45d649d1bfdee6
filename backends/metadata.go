package backends

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Reserved metadata keys, which the outbox writes. A message that already carries
// TopicKey has been through an outbox before: when it is appended again, its
// aggregate is kept and its sequence, which counts in another topic, is not.
const (
	AggregateKey = "outbox_aggregate"  // what order is kept within
	SequenceKey  = "outbox_sequence"   // decimal, from 1
	TopicKey     = "outbox_topic"      // the topic in which the sequence counts
	CreatedAtKey = "outbox_created_at" // RFC 3339 with up to nanoseconds, UTC
)

// SetAggregate names what the message's order is kept within, such as
// "order-42". It is also the key that brokers partition by. An empty name takes
// it off again.
func SetAggregate(msg *message.Message, aggregate string) {
	set(msg, AggregateKey, aggregate)
}

// Aggregate returns what [SetAggregate] set, or an empty string.
func Aggregate(msg *message.Message) string { return msg.Metadata.Get(AggregateKey) }

// SetSequence supplies the message's number within its topic and aggregate,
// where the application has one: the version of an event-sourced aggregate, say.
// Without it the outbox allots one. It must be positive, and it is the
// application's business that it has no gaps. Zero takes it off again.
func SetSequence(msg *message.Message, sequence int64) {
	if sequence == 0 {
		set(msg, SequenceKey, "")
		return
	}
	set(msg, SequenceKey, strconv.FormatInt(sequence, 10))
}

// Sequence returns the message's sequence. It is false where the message has
// none or one that is no positive number.
func Sequence(msg *message.Message) (int64, bool) {
	n, err := strconv.ParseInt(msg.Metadata.Get(SequenceKey), 10, 64)
	return n, err == nil && n > 0
}

func set(msg *message.Message, key, value string) {
	if value == "" {
		delete(msg.Metadata, key)
		return
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[key] = value
}
