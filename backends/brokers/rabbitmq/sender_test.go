package rabbitmq_test

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// sender publishes numbered records of a few aggregates until all are accepted,
// as a forwarder does.
type sender struct {
	*harness
	topic string
	next  int
}

const senders = 40 // aggregates

func (s *sender) batch(n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			MessageID: watermill.NewUUID(), Topic: s.topic, Aggregate: "a" + strconv.Itoa(s.next%senders),
			Sequence: int64(s.next/senders + 1), Payload: make([]byte, 300), CreatedAt: time.Now(),
		}
		s.next++
	}
	return out
}

// publish makes one attempt and returns what is left.
func (s *sender) publish(records []backends.Record, limit time.Duration) (left []backends.Record, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	start := time.Now()
	err = s.broker.Publish(ctx, records)
	require.Less(s.t, time.Since(start), limit+2*time.Second, "the limit was not kept")
	var partial *backends.PartialError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &partial):
		return records, err
	}
	for _, f := range partial.Failures {
		require.NotEqual(s.t, backends.PermanentFailure, backends.ClassOf(f.Err), "a fault of the network is not the record's: %v", f.Err)
		if f.State == backends.Unknown {
			require.Equal(s.t, backends.UnavailableFailure, backends.ClassOf(f.Err), "%v", f.Err)
		}
		left = append(left, records[f.Index])
	}
	return left, err
}

func (s *sender) all(records []backends.Record) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); len(records) > 0; {
		require.True(s.t, time.Now().Before(end), "%d records are not accepted", len(records))
		if records, _ = s.publish(records, 2*time.Second); len(records) > 0 {
			pause(s.t, 50*time.Millisecond)
		}
	}
}

// reconnect gives the harness another connection of its own, after the server's end.
func (s *sender) reconnect(url string) {
	s.t.Helper()
	_ = s.admin.Close()
	conn, err := amqp.Dial(url)
	require.NoError(s.t, err)
	s.admin = conn
}

// check reads the queue: complete, and in order for a consumer that drops repeats.
func (s *sender) check() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for n := s.next; ; n++ {
		seen, last := map[string]bool{}, map[string]int{}
		got, err := s.Read(ctx, s.topic, n)
		require.NoError(s.t, err)
		for _, m := range got {
			if seen[m.ID] {
				continue
			}
			seen[m.ID] = true
			a := m.Headers[backends.AggregateKey]
			require.Equal(s.t, strconv.Itoa(last[a]+1), m.Headers[backends.SequenceKey], "aggregate %s", a)
			last[a]++
		}
		if len(seen) == s.next {
			return
		}
		n = len(got)
	}
}
