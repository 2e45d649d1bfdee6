package kafka

import (
	"bytes"
	"hash/crc32"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
)

// uuidHeader is where watermill-kafka's default marshaler keeps the message id.
const uuidHeader = "_watermill_message_uuid"

// nowhere is the partition of a message that has none yet.
const nowhere = -1

// What a message and a record batch take beside the body, at most: a batch's
// header is 61 bytes, a message's length and place are varints.
const (
	batchOverhead   = 128
	messageOverhead = 12
)

// addedBytes is about what the headers take that the outbox adds, beside the
// values of aggregate and topic.
const addedBytes = 180

// message is a record as a record batch holds it.
type message struct {
	body      []byte // key, value and headers
	key       []byte // within body; nil: none
	partition int32
}

func (m *message) size() int { return len(m.body) + messageOverhead }

// encode makes messages, whose bodies are copies, one behind the other in buf,
// which is returned as it has grown.
func encode(buf []byte, records []backends.Record) ([]message, []byte) {
	out := make([]message, len(records))
	total := 0
	for i := range records { // an estimate: what grows beyond it is right all the same
		r := &records[i]
		total += len(r.Payload) + 2*len(r.Aggregate) + len(r.MessageID) + len(r.Topic) + addedBytes
		for k, v := range r.Metadata {
			total += len(k) + len(v) + 4
		}
	}
	buf = slices.Grow(buf[:0], total)
	var headers []header
	for i := range records {
		r := &records[i]
		headers = append(headers[:0], header{uuidHeader, r.MessageID})
		for k, v := range r.Headers() {
			headers = append(headers, header{k, v})
		}
		buf = out[i].encode(buf, r, headers)
	}
	return out, buf
}

type header struct{ key, value string }

func (m *message) encode(buf []byte, r *backends.Record, headers []header) []byte {
	from := len(buf)
	keyEnd := from
	if r.Aggregate == "" {
		buf = kbin.AppendVarint(buf, -1)
	} else {
		buf = kbin.AppendVarintString(buf, r.Aggregate)
		keyEnd = len(buf)
	}
	buf = kbin.AppendVarint(buf, int32(len(r.Payload))) // empty is no tombstone, which is -1
	buf = append(buf, r.Payload...)
	buf = kbin.AppendVarint(buf, int32(len(headers)))
	for _, h := range headers {
		buf = kbin.AppendVarintString(buf, h.key)
		buf = kbin.AppendVarintString(buf, h.value)
	}
	m.body = buf[from:len(buf):len(buf)]
	if keyEnd > from {
		m.key = buf[keyEnd-len(r.Aggregate) : keyEnd : keyEnd]
	}
	m.partition = nowhere
	return buf
}

// Where fields of a record batch are: https://kafka.apache.org/documentation/#recordbatch
const (
	lengthAt     = 8
	crcAt        = 17
	attributesAt = 21
	recordsAt    = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// producer is the identity by which a cluster tells a repeat from a new batch.
type producer struct {
	id    int64
	epoch int16
}

// encodeBatch makes a record batch of messages in buf, in order. The sequence is
// of the first of them.
func encodeBatch(buf []byte, messages []message, indexes []int, at time.Time, by producer, sequence int32, compressor kgo.Compressor) []byte {
	size := recordsAt
	for _, i := range indexes {
		size += messages[i].size()
	}
	b := slices.Grow(buf[:0], size)
	b = kbin.AppendInt64(b, 0)  // first offset
	b = kbin.AppendInt32(b, 0)  // length of what follows, set below
	b = kbin.AppendInt32(b, -1) // leader epoch
	b = kbin.AppendInt8(b, 2)   // format
	b = kbin.AppendInt32(b, 0)  // checksum, set below
	b = kbin.AppendInt16(b, 0)  // attributes, set below
	b = kbin.AppendInt32(b, int32(len(indexes)-1))
	b = kbin.AppendInt64(b, at.UnixMilli())
	b = kbin.AppendInt64(b, at.UnixMilli())
	b = kbin.AppendInt64(b, by.id)
	b = kbin.AppendInt16(b, by.epoch)
	b = kbin.AppendInt32(b, sequence)
	b = kbin.AppendInt32(b, int32(len(indexes)))
	for n, i := range indexes {
		body := messages[i].body
		b = kbin.AppendVarint(b, int32(1+1+kbin.VarintLen(int32(n))+len(body)))
		b = append(b, 0, 0) // attributes; time after the batch's
		b = kbin.AppendVarint(b, int32(n))
		b = append(b, body...)
	}
	if compressor != nil {
		small, codec := compressor.Compress(new(bytes.Buffer), b[recordsAt:])
		if small != nil && len(small) < len(b)-recordsAt {
			b = append(b[:recordsAt], small...)
			kbin.AppendInt16(b[:attributesAt], int16(codec))
		}
	}
	kbin.AppendInt32(b[:lengthAt], int32(len(b)-lengthAt-4))
	kbin.AppendInt32(b[:crcAt], int32(crc32.Checksum(b[attributesAt:], castagnoli)))
	return b
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
