package redis

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/outmill/outmill/backends"
)

// The fields of an entry, as watermill-redisstream has them.
const (
	uuidField     = "_watermill_message_uuid"
	metadataField = "metadata"
	payloadField  = "payload"
)

// entry is a record as a stream holds it.
type entry struct {
	metadata []byte // a MessagePack map of strings
	err      error  // why it is none
}

func (e *entry) size(r *backends.Record) int {
	return len(r.Topic) + len(r.MessageID) + len(e.metadata) + len(r.Payload) + entryOverhead
}

// entryOverhead is about what the command takes beside its values.
const entryOverhead = 160

// encode makes entries, whose metadata lie one behind the other.
func encode(records []backends.Record, maxBytes int) []entry {
	out := make([]entry, len(records))
	var buf []byte
	for i := range records {
		r := &records[i]
		start := len(buf)
		buf = appendMap(buf, r)
		out[i].metadata = buf[start:len(buf):len(buf)]
		switch {
		case r.Topic == "":
			out[i].err = errors.New("redis: the topic is empty")
		case r.Metadata.Get(uuidField) != "":
			out[i].err = fmt.Errorf("redis: metadata %s is reserved for the message id", uuidField)
		case out[i].size(r) > maxBytes:
			out[i].err = fmt.Errorf("redis: the record takes %d bytes, MaxMessageBytes allows %d", out[i].size(r), maxBytes)
		}
	}
	return out
}

// appendMap appends the headers as a MessagePack map of strings.
func appendMap(buf []byte, r *backends.Record) []byte {
	n := 0
	start := len(buf)
	buf = append(buf, 0xdf, 0, 0, 0, 0) // a map with its length in four bytes
	for k, v := range r.Headers() {
		buf = appendString(appendString(buf, k), v)
		n++
	}
	binary.BigEndian.PutUint32(buf[start+1:], uint32(n))
	return buf
}

func appendString(buf []byte, s string) []byte {
	switch n := len(s); {
	case n < 1<<5:
		buf = append(buf, 0xa0|byte(n))
	case n < 1<<8:
		buf = append(buf, 0xd9, byte(n))
	case n < 1<<16:
		buf = binary.BigEndian.AppendUint16(append(buf, 0xda), uint16(n))
	default:
		buf = binary.BigEndian.AppendUint32(append(buf, 0xdb), uint32(n))
	}
	return append(buf, s...)
}
