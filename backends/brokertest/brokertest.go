// Package brokertest is the conformance suite for brokers: what every adapter
// must hold, whatever it talks to. An adapter's own test makes a harness and
// runs the suite:
//
//	func TestBroker(t *testing.T) {
//		brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t) })
//	}
//
// What a broker can be made to do is found by type assertion on the harness, see
// [Refuser], [Missing], [Outage] and [Freezer]; what was not tried is named in the output.
package brokertest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// Harness is a broker under test with a view of what it accepted.
type Harness interface {
	Broker() backends.Broker
	// Topic returns a topic that exists and is empty.
	Topic() string
	// Read returns the first n messages of a topic in the order in which a
	// consumer gets them, and whatever else came by then. It fails when ctx ends.
	Read(ctx context.Context, topic string, n int) ([]Message, error)
}

// Message is what a consumer gets.
type Message struct {
	ID      string
	Payload []byte
	Headers map[string]string
}

// Refuser is a harness whose broker can be made to refuse a record for good.
type Refuser interface {
	// Refused returns a copy of the record that the broker will refuse, and it
	// alone.
	Refused(r backends.Record) backends.Record
}

// Missing is a harness whose broker can tell that a topic does not exist.
type Missing interface{ MissingTopic() string }

// Outage is a harness whose broker can be cut off.
type Outage interface {
	Down()
	Up()
}

// Freezer is a harness whose broker can be made to hang.
type Freezer interface {
	Freeze()
	Thaw()
}

// T is the part of testing.TB that the cases use.
type T interface {
	require.TestingT
	Helper()
	Logf(format string, args ...any)
	Context() context.Context
}

type testCase struct {
	name string
	run  func(f *fixture)
}

// Run runs the suite. open is called once for each case.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(&fixture{T: t, Harness: open(t)}) })
	}
}
