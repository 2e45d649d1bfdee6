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

// encode makes Kafka records, with their sizes. What they hold is a copy, in one
// piece for the batch: the client may still hold it after Publish has returned.
func encode(records []backends.Record) ([]kgo.Record, []int) {
	out := make([]kgo.Record, len(records))
	sizes := make([]int, len(records))
	total, headers := 0, 0
	for i := range records {
		r := &records[i]
		n := len(r.Payload) + len(r.Aggregate) + len(r.MessageID)
		headers++
		for k, v := range r.Headers() {
			n += len(v)
			sizes[i] += len(k) + headerOverhead
			headers++
		}
		total += n
		sizes[i] += n + recordOverhead + len(uuidHeader) + headerOverhead
	}
	a := arena{bytes: make([]byte, 0, total), headers: make([]kgo.RecordHeader, 0, headers)}
	for i := range records {
		a.record(&out[i], &records[i])
	}
	return out, sizes
}

type arena struct {
	bytes   []byte
	headers []kgo.RecordHeader
}

func (a *arena) record(out *kgo.Record, r *backends.Record) {
	first := len(a.headers)
	a.headers = append(a.headers, kgo.RecordHeader{Key: uuidHeader, Value: a.string(r.MessageID)})
	for k, v := range r.Headers() {
		a.headers = append(a.headers, kgo.RecordHeader{Key: k, Value: a.string(v)})
	}
	out.Topic, out.Partition = r.Topic, nowhere
	out.Headers = a.headers[first:len(a.headers):len(a.headers)]
	out.Value = a.keep(r.Payload)
	if r.Aggregate != "" {
		out.Key = a.string(r.Aggregate)
	}
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
