package kafka

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
)

// uuidHeader is where watermill-kafka's default marshaler keeps the message id.
const uuidHeader = "_watermill_message_uuid"

// nowhere is the partition of a record that the client has not placed.
const nowhere = -1

// What a record and a record batch take beside keys and values, at most: the
// batch's header is 61 bytes, a record's fixed fields are varints.
const (
	batchOverhead  = 128
	recordOverhead = 40
	headerOverhead = 10
)

// addedBytes is about what the values of the headers take that the outbox adds,
// beside the aggregate and the topic.
const addedBytes = 56

// encode makes Kafka records, with their sizes. What they hold is a copy, in one
// piece for the batch: the client may still hold it after Publish has returned.
func encode(records []backends.Record) ([]kgo.Record, []int) {
	out := make([]kgo.Record, len(records))
	sizes := make([]int, len(records))
	total, headers := 0, 0
	for i := range records { // an estimate: what grows beyond it is right all the same
		r := &records[i]
		total += len(r.Payload) + 2*len(r.Aggregate) + len(r.MessageID) + len(r.Topic) + addedBytes
		for _, v := range r.Metadata {
			total += len(v)
		}
		headers += len(r.Metadata) + 5
	}
	a := arena{bytes: make([]byte, 0, total), headers: make([]kgo.RecordHeader, 0, headers)}
	for i := range records {
		sizes[i] = a.record(&out[i], &records[i])
	}
	return out, sizes
}

type arena struct {
	bytes   []byte
	headers []kgo.RecordHeader
}

func (a *arena) record(out *kgo.Record, r *backends.Record) (size int) {
	first := len(a.headers)
	size = recordOverhead + len(r.Payload) + len(r.Aggregate)
	size += a.header(uuidHeader, r.MessageID)
	for k, v := range r.Headers() {
		size += a.header(k, v)
	}
	out.Topic, out.Partition = r.Topic, nowhere
	out.Headers = a.headers[first:len(a.headers):len(a.headers)]
	out.Value = a.keep(r.Payload)
	if r.Aggregate != "" {
		out.Key = a.string(r.Aggregate)
	}
	return size
}

func (a *arena) header(key, value string) (size int) {
	a.headers = append(a.headers, kgo.RecordHeader{Key: key, Value: a.string(value)})
	return len(key) + len(value) + headerOverhead
}

func (a *arena) string(s string) []byte {
	from := len(a.bytes)
	a.bytes = append(a.bytes, s...)
	return a.bytes[from:len(a.bytes):len(a.bytes)]
}

func (a *arena) keep(b []byte) []byte {
	if len(b) == 0 {
		return bytes.Clone([]byte{}) // empty, not a tombstone
	}
	from := len(a.bytes)
	a.bytes = append(a.bytes, b...)
	return a.bytes[from:len(a.bytes):len(a.bytes)]
}

func validTopic(name string) bool {
	if len(name) == 0 || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' {
			continue
		}
		return false
	}
	return true
}
