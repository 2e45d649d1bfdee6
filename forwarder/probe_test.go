package forwarder_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// 1. B's batch of a topic is with the broker, which takes seven seconds.
// 2. A's batch of it fails: the topic is held back. A probes it, which takes long.
// 3. B's batch is accepted: the topic flows.
// 4. A reads. The records of its probe have no answer and must not go out again.
func TestBreaker_AProbeUnderWayIsNotSentTwice(t *testing.T) {
	inWorld(t, func(w *world) {
		calls := map[string]int{}
		b := &scripted{fake: w.broker, script: func(aggregate string) (time.Duration, error) {
			calls[aggregate]++
			switch {
			case aggregate == "o":
				return 0, nil
			case aggregate == "b":
				return 7 * time.Second, nil
			case calls["a"] == 1:
				return 0, errDown
			case calls["a"] == 2:
				return 9 * time.Second, nil
			}
			return 0, nil
		}}
		w.publish("t", "b", "1")
		f, err := forwarder.New(w.store, b, forwarder.Config{Workers: 64})
		require.NoError(w, err)
		ctx, stop := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		w.after(time.Second)
		w.publish("t", "a", "1")
		w.after(time.Second)
		for range 20 { // gives every worker reasons to read
			w.publish("other", "o", "1")
			w.after(time.Second)
		}
		require.Equal(w, numbers(1, 1), w.broker.got("a"))
		require.Equal(w, 2, calls["a"], "a failure and a probe")
		require.Equal(w, numbers(1, 1), w.broker.got("b"))
		stop()
		require.NoError(w, <-done)
		require.Zero(w, w.backlog().Ready)
	})
}

// scripted answers by the aggregate of a batch's first record.
type scripted struct {
	*fake
	script func(aggregate string) (time.Duration, error)
}

func (s *scripted) Publish(ctx context.Context, records []backends.Record) error {
	s.mu.Lock()
	delay, err := s.script(records[0].Aggregate)
	s.mu.Unlock()
	<-time.After(delay)
	if err != nil {
		return err
	}
	return s.fake.Publish(ctx, records)
}
