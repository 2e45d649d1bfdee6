package storetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// fixture is a store in a case, with what cases do again and again.
type fixture struct {
	T
	store Store
	box   backends.Outbox
}

func newFixture(t T, s Store) *fixture { return &fixture{T: t, store: s, box: s.Outbox()} }

// term is a lease that outlasts any case.
const term = time.Minute

// msg makes a message whose payload names it.
func msg(aggregate, name string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(name))
	if aggregate != "" {
		backends.SetAggregate(m, aggregate)
	}
	return m
}

func (f *fixture) begin() Tx {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), limit)
	defer cancel()
	tx, err := f.store.Begin(ctx)
	require.NoError(f, err)
	return tx
}

// beginBeside begins a transaction while another is open. nil: the engine lets
// one write at a time.
func (f *fixture) beginBeside() Tx {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 300*time.Millisecond)
	defer cancel()
	tx, err := f.store.Begin(ctx)
	if err != nil {
		f.Logf("one writer at a time: the second transaction follows the first")
		return nil
	}
	return tx
}

func (f *fixture) commit(tx Tx) {
	f.Helper()
	require.NoError(f, tx.Commit(f.Context()))
}

// publish appends messages in one call and one transaction.
func (f *fixture) publish(topic string, msgs ...*message.Message) {
	f.Helper()
	tx := f.begin()
	require.NoError(f, tx.Publisher().Publish(topic, msgs...))
	f.commit(tx)
}

// series appends n messages of one aggregate, named by number from 1, each in
// its own transaction.
func (f *fixture) series(topic, aggregate string, n int) {
	f.Helper()
	for i := range n {
		f.publish(topic, msg(aggregate, strconv.Itoa(i+1)))
	}
}

func (f *fixture) lease(owner string) backends.Lease {
	f.Helper()
	l, err := f.box.Lease(f.Context(), owner, term)
	require.NoError(f, err)
	return l
}

// session is a reader with its lease, as a worker has it.
type session struct {
	*fixture
	lease  backends.Lease
	reader backends.Reader
}

// open leases all shards for a sole owner.
func (f *fixture) open(owner string) *session {
	f.Helper()
	return &session{fixture: f, lease: f.lease(owner), reader: f.box.Reader()}
}

func (s *session) readWant(want backends.Want) []backends.Record {
	s.Helper()
	got, err := s.reader.Read(s.Context(), s.lease, want)
	require.NoError(s, err)
	return got
}

func (s *session) read(limit int) []backends.Record {
	s.Helper()
	return s.readWant(backends.Want{Limit: limit})
}

// readSome reads until something comes: what was released or is due may take
// a moment.
func (s *session) readSome(n int) []backends.Record {
	s.Helper()
	end := time.Now().Add(limit)
	for {
		if got := s.read(n); len(got) > 0 {
			return got
		}
		require.True(s, time.Now().Before(end), "nothing to read in %v", limit)
		s.pause(5 * time.Millisecond)
	}
}

func (f *fixture) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.Context().Done():
	}
}

func (s *session) settle(outcomes ...backends.Outcome) {
	s.Helper()
	require.NoError(s, s.reader.Settle(s.Context(), s.lease, outcomes))
}

func outcome(r *backends.Record, a backends.Action) backends.Outcome {
	o := backends.Outcome{Record: r, Action: a}
	if a == backends.Retry || a == backends.Park || a == backends.Skip {
		o.Err = fmt.Errorf("planted failure")
	}
	return o
}

func deliveries(records []backends.Record) []backends.Outcome {
	out := make([]backends.Outcome, len(records))
	for i := range records {
		out[i] = outcome(&records[i], backends.Delivered)
	}
	return out
}

// drain reads and settles until nothing is due, a few at a time so that batches
// end in the middle of things.
func (s *session) drain(batch int) []backends.Record {
	s.Helper()
	var out []backends.Record
	for empty := 0; empty < 2; {
		got := s.read(batch)
		if len(got) == 0 {
			empty++
			continue
		}
		s.settle(deliveries(got)...)
		out = append(out, got...)
	}
	return out
}

// drainTo drains until n records have come.
func (s *session) drainTo(n int) []backends.Record {
	s.Helper()
	var out []backends.Record
	for end := time.Now().Add(limit); len(out) < n; {
		out = append(out, s.drain(7)...)
		require.True(s, time.Now().Before(end), "%d of %d records came in %v", len(out), n, limit)
		s.pause(time.Millisecond)
	}
	return out
}

// arrived is a record with when it came.
type arrived struct {
	backends.Record
	at time.Time
}

// arrivals drains until n records have come, and notes when each did. What a
// case says of time it says of these, so that a slow machine proves nothing wrong.
func (s *session) arrivals(n int) []arrived {
	s.Helper()
	var out []arrived
	for end := time.Now().Add(limit); len(out) < n; s.pause(time.Millisecond) {
		got := s.read(7)
		for _, r := range got {
			out = append(out, arrived{r, time.Now()})
		}
		s.settle(deliveries(got)...)
		require.True(s, time.Now().Before(end), "%d of %d records came in %v", len(out), n, limit)
	}
	return out
}

// apart splits arrivals by aggregate.
func apart(all []arrived) (records map[string][]backends.Record, first map[string]time.Time) {
	records, first = map[string][]backends.Record{}, map[string]time.Time{}
	for _, a := range all {
		records[a.Aggregate] = append(records[a.Aggregate], a.Record)
		if first[a.Aggregate].IsZero() {
			first[a.Aggregate] = a.at
		}
	}
	return records, first
}

func payloads(records []backends.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Payload)
	}
	return out
}

// of is the records of an aggregate.
func of(records []backends.Record, aggregate string) []backends.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r backends.Record) bool { return r.Aggregate != aggregate })
}

// numbers are the names that series gives, from and to inclusive.
func numbers(from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

func sequences(records []backends.Record) []int64 {
	out := make([]int64, len(records))
	for i, r := range records {
		out[i] = r.Sequence
	}
	return out
}

func upTo(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i + 1)
	}
	return out
}
