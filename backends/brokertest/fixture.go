package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// limit is how long a case waits for anything.
var limit = 30 * time.Second

type fixture struct {
	T
	Harness
	lastID int64
}

func (f *fixture) record(topic, aggregate, payload string) backends.Record {
	f.lastID++
	r := backends.Record{
		Ref:       backends.Ref{Shard: 7, ID: f.lastID},
		MessageID: watermill.NewUUID(), Topic: topic, Aggregate: aggregate,
		Payload: []byte(payload), Metadata: message.Metadata{"type": "test"}, CreatedAt: time.Now().UTC(),
	}
	if aggregate != "" {
		r.Sequence = f.lastID
	}
	return r
}

// batch is n records spread over aggregates a0 to a9, numbered in each from 1.
func (f *fixture) batch(topic string, n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = f.record(topic, "a"+strconv.Itoa(i%10), strconv.Itoa(i/10+1))
	}
	return out
}

func (f *fixture) publish(records []backends.Record, within time.Duration) error {
	ctx, cancel := context.WithTimeout(f.Context(), within)
	defer cancel()
	return f.Broker().Publish(ctx, records)
}

// accepted are the indexes that an answer claims to be durable.
func accepted(records []backends.Record, err error) []int {
	var out []int
	var partial *backends.PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil
	}
	for i := range records {
		if partial == nil || !slices.ContainsFunc(partial.Failures, func(f backends.Failure) bool { return f.Index == i }) {
			out = append(out, i)
		}
	}
	return out
}

// failures lists an answer's failures by index.
func (f *fixture) failures(err error) map[int]backends.Failure {
	f.Helper()
	var partial *backends.PartialError
	require.True(f, errors.As(err, &partial), "want a PartialError, got %v", err)
	out := map[int]backends.Failure{}
	last := -1
	for _, x := range partial.Failures {
		require.Greater(f, x.Index, last, "failures must be sorted by index")
		last = x.Index
		out[x.Index] = x
	}
	return out
}

func (f *fixture) readN(topic string, n int) []Message {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), limit)
	defer cancel()
	got, err := f.Read(ctx, topic, n)
	require.NoError(f, err)
	return got
}

// firsts drops repeats, as a consumer does, and returns payloads by aggregate.
func firsts(messages []Message) map[string][]string {
	out, seen := map[string][]string{}, map[string]bool{}
	for _, m := range messages {
		if !seen[m.ID] {
			seen[m.ID] = true
			a := m.Headers[backends.AggregateKey]
			out[a] = append(out[a], string(m.Payload))
		}
	}
	return out
}

func numbers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(i + 1)
	}
	return out
}

// inOrder wants of each aggregate a0 to a9 the numbers 1 to n.
func (f *fixture) inOrder(messages []Message, n int) {
	f.Helper()
	got := firsts(messages)
	for i := range 10 {
		a := fmt.Sprintf("a%d", i)
		require.Equal(f, numbers(n), got[a], "order of aggregate %s", a)
	}
}

// publishAll publishes until every record is accepted, as a forwarder does, and
// stops an aggregate for the rest of a round at its first failure.
func (f *fixture) publishAll(records []backends.Record) {
	f.Helper()
	for end := time.Now().Add(limit); len(records) > 0; {
		require.True(f, time.Now().Before(end), "%d records are still not accepted", len(records))
		done := map[int]bool{}
		for _, i := range accepted(records, f.publish(records, 5*time.Second)) {
			done[i] = true
		}
		var left []backends.Record
		for i, r := range records {
			if !done[i] {
				left = append(left, r)
			}
		}
		if len(left) == len(records) {
			f.pause(50 * time.Millisecond)
		}
		records = left
	}
}

func (f *fixture) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.Context().Done():
	}
}
