// Package records holds what every store does alike with a message before it
// becomes a row: check it, split off the reserved metadata, find its shard.
package records

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Limits that hold on every engine. They keep rows indexable and within what
// every broker accepts: RabbitMQ allows 255 bytes for a routing key and for a
// message id, and a frame of 128 KiB for headers.
const (
	MaxNameBytes      = 255       // topic, aggregate, message id
	MaxMetadataBytes  = 64 << 10  // keys and values together
	DefaultMaxPayload = 16 << 20  // bytes
	HardMaxPayload    = 512 << 20 // bytes: below what Postgres, MySQL and SQLite can store in a value
	maxErrorText      = 512       // bytes of last_error
)

// Row is a message as it is stored.
type Row struct {
	Shard     int
	MessageID string
	Topic     string
	Aggregate string
	Sequence  int64 // supplied by the application, 0 if not
	Payload   []byte
	Metadata  []byte // JSON object of strings, without the reserved keys
}

// Prepare checks the messages of one Publish call and makes rows of them, in
// their order. Its error joins one *backends.MessageError for each fault; then
// there are no rows.
func Prepare(topic string, msgs []*message.Message, maxPayload int) ([]Row, error) {
	var faults []error
	rows := make([]Row, 0, len(msgs))
	for i, msg := range msgs {
		row, errs := prepare(i, topic, msg, maxPayload)
		faults = append(faults, errs...)
		rows = append(rows, row)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rows, nil
}

func prepare(index int, topic string, msg *message.Message, maxPayload int) (Row, []error) {
	c := checker{index: index}
	if msg == nil {
		c.fault("message", "is nil", "pass only messages made by message.NewMessage")
		return Row{}, c.faults
	}
	c.id = msg.UUID
	c.name("message id", msg.UUID, "give each message an id, such as watermill.NewUUID()")
	c.name("topic", topic, "name the topic to publish to")
	aggregate := msg.Metadata.Get(backends.AggregateKey)
	if aggregate != "" {
		c.name("aggregate", aggregate, "use a short name, such as the aggregate's id")
	}
	if n := len(msg.Payload); n > maxPayload {
		c.fault("payload", fmt.Sprintf("has %d bytes, at most %d are allowed", n, maxPayload),
			"publish a reference to where it is stored, or raise MaxPayload together with the broker's limit")
	}
	row := Row{
		MessageID: msg.UUID, Topic: topic, Aggregate: aggregate, Payload: msg.Payload,
		Shard: Shard(aggregate, msg.UUID),
	}
	if row.Payload == nil {
		row.Payload = []byte{}
	}
	row.Sequence = c.sequence(msg, aggregate)
	c.metadata(msg.Metadata)
	if len(c.faults) == 0 {
		row.Metadata = EncodeMetadata(msg.Metadata)
	}
	return row, c.faults
}

type checker struct {
	index  int
	id     string
	faults []error
}

func (c *checker) fault(field, problem, remedy string) {
	c.faults = append(c.faults, &backends.MessageError{
		Index: c.index, MessageID: cut(printable(c.id), 64), Field: field, Problem: problem, Remedy: remedy,
	})
}

func (c *checker) name(field, value, remedy string) {
	switch {
	case value == "":
		c.fault(field, "is empty", remedy)
	case len(value) > MaxNameBytes:
		c.fault(field, fmt.Sprintf("has %d bytes, at most %d are allowed", len(value), MaxNameBytes), remedy)
	default:
		c.text(field, value)
	}
}

func (c *checker) text(field, value string) {
	switch {
	case !utf8.ValidString(value):
		c.fault(field, "is not valid UTF-8", "encode binary values, for example as base64")
	case strings.IndexByte(value, 0) >= 0:
		c.fault(field, "holds a NUL byte", "remove it: not every database and broker can carry it")
	}
}

func (c *checker) sequence(msg *message.Message, aggregate string) int64 {
	value := msg.Metadata.Get(backends.SequenceKey)
	if value == "" || msg.Metadata.Get(backends.TopicKey) != "" {
		return 0
	}
	n, ok := backends.Sequence(msg)
	if !ok {
		c.fault("sequence", "is not a positive number", "set it by backends.SetSequence, from 1")
	}
	if aggregate == "" {
		c.fault("sequence", "is set on a message without an aggregate", "set the aggregate too, by backends.SetAggregate")
	}
	return n
}

func (c *checker) metadata(md message.Metadata) {
	total := 0
	for k, v := range md {
		if reserved(k) {
			continue
		}
		total += len(k) + len(v)
		if k == "" {
			c.fault("metadata key", "is empty", "name it")
			continue
		}
		c.text("metadata key", k)
		c.text("metadata["+cut(printable(k), 64)+"]", v)
	}
	if total > MaxMetadataBytes {
		c.fault("metadata", fmt.Sprintf("has %d bytes, at most %d are allowed", total, MaxMetadataBytes),
			"put large values into the payload")
	}
}

func reserved(key string) bool {
	switch key {
	case backends.AggregateKey, backends.SequenceKey, backends.TopicKey, backends.CreatedAtKey:
		return true
	}
	return false
}

// Shard is where the records of an aggregate are kept; a record without one is
// placed by its message id. The function is part of what is stored and can
// never change.
func Shard(aggregate, messageID string) int {
	h := fnv.New64a()
	if aggregate == "" {
		aggregate = messageID
	}
	_, _ = h.Write([]byte(aggregate)) // a hash never fails
	sum := h.Sum64()
	return int((sum ^ sum>>32) % backends.Shards)
}

// ErrorText is what is stored of an error: at most 512 bytes of valid text.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return cut(printable(err.Error()), maxErrorText)
}

func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
