package private

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokertest"
)

// Sender publishes numbered records of a few aggregates until all are accepted,
// as a forwarder does.
type Sender struct {
	t     *testing.T
	h     brokertest.Harness
	topic string
	next  int
}

// NewSender makes one for a topic that is empty.
func NewSender(t *testing.T, h brokertest.Harness, topic string) *Sender {
	return &Sender{t: t, h: h, topic: topic}
}

const aggregates = 7

// Batch makes the next n records.
func (s *Sender) Batch(n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			Ref:       backends.Ref{Shard: s.next % aggregates, ID: int64(s.next + 1)},
			MessageID: watermill.NewUUID(), Topic: s.topic, Aggregate: "a" + strconv.Itoa(s.next%aggregates),
			Sequence: int64(s.next/aggregates + 1), Payload: make([]byte, 300), CreatedAt: time.Now(),
		}
		s.next++
	}
	return out
}

// Try makes one attempt and returns what is left.
func (s *Sender) Try(records []backends.Record, limit time.Duration) (left []backends.Record, err error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	err = s.h.Broker().Publish(ctx, records)
	var partial *backends.PartialError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &partial):
		require.Equal(s.t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		return records, err
	}
	for _, f := range partial.Failures {
		if f.State != backends.NotSent {
			require.Equal(s.t, backends.UnavailableFailure, backends.ClassOf(f.Err), "a fault of the network is not the record's: %v", f.Err)
		}
		left = append(left, records[f.Index])
	}
	return left, err
}

// All publishes until nothing is left.
func (s *Sender) All(records []backends.Record) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); len(records) > 0; {
		require.True(s.t, time.Now().Before(end), "%d records are not accepted", len(records))
		if records, _ = s.Try(records, 2*time.Second); len(records) > 0 {
			pause(s.t, 50*time.Millisecond)
		}
	}
}

func pause(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// Check reads the topic: complete, and in order for a consumer that drops repeats.
func (s *Sender) Check() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	seen, last := map[string]bool{}, map[string]int{}
	for n := s.next; len(seen) < s.next; n++ {
		got, err := s.h.Read(ctx, s.topic, n)
		require.NoError(s.t, err)
		clear(seen)
		clear(last)
		for _, m := range got {
			if seen[m.ID] {
				continue
			}
			seen[m.ID] = true
			a := m.Headers[backends.AggregateKey]
			require.Equal(s.t, strconv.Itoa(last[a]+1), m.Headers[backends.SequenceKey], "aggregate %s", a)
			last[a]++
		}
	}
	s.t.Logf("%d records, complete and in order", s.next)
}

// Cuts spoils the connection in every way that the proxy has, with batches on
// their way.
func Cuts(s *Server, w *Sender) {
	w.t.Helper()
	w.All(w.Batch(100))
	resets(s, w)

	// Half open: nothing comes back, and nobody says so.
	unheard := w.Batch(50)
	s.WithToxic("timeout", "downstream", map[string]any{"timeout": 0}, func() {
		start := time.Now()
		left, err := w.Try(unheard, time.Second)
		require.Error(w.t, err)
		require.Len(w.t, left, 50)
		require.Less(w.t, time.Since(start), 3*time.Second, "the limit was not kept")
	})
	w.All(unheard)

	// Latency, a slow close and little bandwidth are slow, and no failure.
	for kind, attributes := range map[string]map[string]any{
		"latency": {"latency": 300}, "slow_close": {"delay": 2000}, "bandwidth": {"rate": 50},
	} {
		s.WithToxic(kind, "downstream", attributes, func() {
			left, err := w.Try(w.Batch(50), 30*time.Second)
			require.NoError(w.t, err, kind)
			require.Empty(w.t, left)
		})
	}
	s.WithToxic("bandwidth", "upstream", map[string]any{"rate": 50}, func() {
		left, err := w.Try(w.Batch(50), 30*time.Second)
		require.NoError(w.t, err)
		require.Empty(w.t, left)
	})

	// Two seconds each way are more than this limit: unknown, and sent again.
	late := w.Batch(50)
	s.WithToxic("latency", "downstream", map[string]any{"latency": 2000}, func() {
		_, err := w.Try(late, time.Second)
		require.Error(w.t, err)
	})
	w.All(late)
	w.Check()
}

// resets cuts connections while batches are on their way, again and again.
func resets(s *Server, w *Sender) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(40 * time.Millisecond):
			}
			s.Enable(false)
			pause(w.t, 20*time.Millisecond)
			s.Enable(true)
		}
	}()
	for range 40 {
		w.All(w.Batch(200))
	}
	close(stop)
	<-done
}

// Kills stops the server and kills it with batches on their way. It must come
// back within ten seconds of its return, without a new broker.
func Kills(s *Server, w *Sender) {
	w.t.Helper()
	w.All(w.Batch(100))

	// It stands still. Publish does not wait for it.
	s.Signal(syscall.SIGSTOP)
	start := time.Now()
	left, err := w.Try(w.Batch(50), time.Second)
	require.Error(w.t, err)
	require.Less(w.t, time.Since(start), 3*time.Second)
	s.Signal(syscall.SIGCONT)
	w.All(left)

	for range 3 {
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			pause(w.t, 30*time.Millisecond)
			s.Signal(syscall.SIGKILL)
		}()
		var waiting []backends.Record
		for waiting == nil {
			waiting, _ = w.Try(w.Batch(500), 2*time.Second)
		}
		<-killed
		_, err = w.Try(waiting, 5*time.Second)
		require.Equal(w.t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		s.Script("start")
		back := time.Now()
		w.All(waiting)
		require.Less(w.t, time.Since(back), 10*time.Second, "not recovered within ten seconds of the server's return")
		w.t.Logf("recovered %v after the server's return", time.Since(back))
	}
	w.Check()
}
