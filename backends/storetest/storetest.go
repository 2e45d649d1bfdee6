// Package storetest is the conformance suite for stores: what every outbox must
// hold, whatever database it lives in. A store's own test opens it and runs the
// suite:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB) storetest.Store { return open(t) })
//	}
//
// There are no switches. What an outbox can do beyond the contract is found by
// type assertion, and what it cannot is named in the output. Engines that let
// one transaction write at a time pass too: the suite begins a second writer
// beside the first and goes on when it is kept waiting.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// Store is what the suite needs of a store under test.
type Store interface {
	// Outbox is fresh: its tables are there and empty.
	Outbox() backends.Outbox
	// Begin begins a transaction.
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction of the store under test.
type Tx interface {
	Publisher() message.Publisher
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// T is the part of testing.TB that the cases use.
type T interface {
	require.TestingT
	Helper()
	Logf(format string, args ...any)
	Context() context.Context
}

// testCase is one promise.
type testCase struct {
	name string
	run  func(f *fixture)
}

// limit is how long a case waits for anything.
var limit = 20 * time.Second

// Run runs the suite. open is called once for each case and returns a fresh
// store, which it closes by t.Cleanup. Cases run in parallel.
func Run(t *testing.T, open func(t testing.TB) Store) {
	for _, c := range all() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newFixture(t, open(t)))
		})
	}
}

func all() []testCase {
	var cases []testCase
	for _, group := range [][]testCase{appendCases, orderCases, readCases, leaseCases, settleCases, parkCases, stateCases, inboxCases, inboxDeadCases} {
		cases = append(cases, group...)
	}
	return cases
}
