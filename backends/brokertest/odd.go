package brokertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// oddities spoil a record in ways that a store lets through or that a caller of
// its own may come up with. A broker takes such a record or refuses it.
var oddities = []func(r *backends.Record){
	func(r *backends.Record) { r.Topic = "" },
	func(r *backends.Record) { r.Topic = "no such/\U0001F989\x00*.> #" },
	func(r *backends.Record) { r.Topic = strings.Repeat("t", 300) },
	func(r *backends.Record) { r.Aggregate = strings.Repeat("a", 300) },
	func(r *backends.Record) { r.Aggregate = "\xff\x00\r\n" },
	func(r *backends.Record) { r.MessageID = "" },
	func(r *backends.Record) { r.MessageID = strings.Repeat("\x00", 300) },
	func(r *backends.Record) { r.Metadata, r.Payload, r.CreatedAt = nil, nil, time.Time{} },
	func(r *backends.Record) { r.Metadata = message.Metadata{"": "no key"} },
	func(r *backends.Record) { r.Metadata = message.Metadata{"a: b\r\nc": "\r\n\x00\xff"} },
	func(r *backends.Record) { r.Metadata = message.Metadata{"large": strings.Repeat("v", 100_000)} },
}

// odd wants an answer for each such record, and nothing else to suffer.
func odd(f *fixture) {
	topic := f.Topic()
	var records []backends.Record
	strange := map[int]bool{}
	for i, r := range f.batch(topic, 10*len(oddities)) {
		records = append(records, r)
		if i%10 == 5 {
			r = f.record(topic, fmt.Sprint("odd", i), "odd")
			oddities[i/10](&r)
			strange[len(records)] = true
			records = append(records, r)
		}
	}
	err := f.careful(records)
	if err != nil {
		for i := range f.failures(err) {
			require.True(f, strange[i], "record %d suffers for an odd one: %v", i, err)
		}
	}
	n := 0
	for _, i := range accepted(records, err) {
		if records[i].Topic == topic {
			n++
		}
	}
	f.inOrder(f.readN(topic, n), len(oddities))
}

// careful publishes, and fails the case when the broker panics.
func (f *fixture) careful(records []backends.Record) error {
	f.Helper()
	panicked, err := func() (panicked any, err error) {
		defer func() { panicked = recover() }()
		return nil, f.publish(records, limit)
	}()
	require.Nil(f, panicked, "the broker panicked")
	return err
}
