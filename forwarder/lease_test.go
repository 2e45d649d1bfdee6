package forwarder_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// Nothing is published with less lease left than the publish may take.
func TestLease_APublishNeverOutlastsIt(t *testing.T) {
	inWorld(t, func(w *world) {
		var mu sync.Mutex
		var deadline time.Time
		flaky := false
		s := &shaky{Store: w.store}
		s.lease = func() error {
			if flaky = !flaky; flaky { // every second heartbeat fails
				return errStore
			}
			return nil
		}
		w.box = s
		cfg := forwarder.Config{Lease: 3 * time.Second, PublishTimeout: 2 * time.Second, PollMax: time.Second}
		cfg.Hooks.Leased = func(_ context.Context, l backends.Lease, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				deadline = l.Deadline
			}
		}
		worst := time.Hour
		w.broker.hook = func(ctx context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			worst = min(worst, time.Until(deadline))
			return nil
		}
		w.broker.delay = 1500 * time.Millisecond
		r := w.start(cfg)
		for i := range 60 {
			w.publish("t", "a"+strconv.Itoa(i%7), strconv.Itoa(i))
			w.after(500 * time.Millisecond)
		}
		w.after(20 * time.Second)
		require.GreaterOrEqual(w, worst, 2*time.Second)
		require.Zero(w, w.backlog().Ready)
		_, err := r.end()
		require.NoError(w, err)
	})
}

// 1. A's heartbeats fail for longer than its term, in the middle of a batch.
// 2. B takes over and sends the same records and later ones.
// 3. A's batch is answered: only the deliveries count, and A publishes no more.
func TestLease_LostInMidBatch(t *testing.T) {
	inWorld(t, func(w *world) {
		a := &shaky{Store: w.store}
		w.box = a
		release := make(chan struct{})
		first := true
		w.broker.hook = func(context.Context) error {
			w.broker.mu.Lock()
			mine := first
			first = false
			w.broker.mu.Unlock()
			if mine {
				<-release
			}
			return nil
		}
		w.publish("t", "x", numbers(1, 3)...)
		old := w.start(forwarder.Config{Workers: 1})
		w.after(time.Second)
		a.set(func(s *shaky) { s.lease = func() error { return errStore } })
		w.box = w.store
		young := w.start(forwarder.Config{Workers: 1})
		w.after(10 * time.Second)
		require.Empty(w, w.broker.got("x"), "taken over before the end of the term")
		w.after(8 * time.Second)
		require.Equal(w, numbers(1, 3), w.broker.got("x"))
		w.publish("t", "x", numbers(4, 5)...)
		w.after(time.Second)
		close(release)
		w.after(time.Second)
		require.Equal(w, numbers(1, 5), w.broker.firsts("x"))
		w.publish("t", "x", "6")
		w.after(2 * time.Second)
		require.Equal(w, numbers(1, 6), w.broker.firsts("x"))
		require.Len(w, w.broker.got("x"), 6+3, "only the batch in hand may repeat")
		for _, r := range []*running{old, young} {
			_, err := r.end()
			require.NoError(w, err)
		}
	})
}

// Forwarders come and go in good order: nothing is sent twice.
func TestLease_ManyForwardersComeAndGo(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.delay = 3 * time.Millisecond
		var running []*running
		sent := map[string]int{}
		publish := func(n int) {
			for i := range n {
				a := "a" + strconv.Itoa(i%40)
				sent[a]++
				w.publish("t", a, strconv.Itoa(sent[a]))
			}
			w.after(100 * time.Millisecond)
		}
		for range 4 {
			running = append(running, w.start(forwarder.Config{Batch: 20}))
			for range 30 {
				publish(20)
			}
		}
		w.after(3 * time.Second)
		require.Len(w, w.backlog().Owners, 4)
		require.Zero(w, w.backlog().UnownedShards)
		for _, r := range running[:3] {
			took, err := r.end()
			require.NoError(w, err)
			require.Less(w, took, time.Second)
			for range 15 {
				publish(20)
			}
		}
		w.after(3 * time.Second)
		for a, n := range sent {
			require.Equal(w, numbers(1, n), w.broker.got(a), "aggregate %s", a)
		}
		_, err := running[3].end()
		require.NoError(w, err)
	})
}

// A clean stop hands over within a heartbeat, not a term.
func TestLease_ACleanStopHandsOverAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.start(forwarder.Config{})
		w.after(2 * time.Second)
		second := w.start(forwarder.Config{})
		w.after(5 * time.Second)
		_, err := first.end()
		require.NoError(w, err)
		for i := range 100 {
			w.publish("t", "a"+strconv.Itoa(i), "1")
		}
		w.after(1100 * time.Millisecond)
		_, accepted := w.broker.count()
		require.Equal(w, 100, accepted)
		_, err = second.end()
		require.NoError(w, err)
	})
}

// A forwarder that dies is replaced within its term.
func TestLease_ADeadForwarderIsReplacedWithinATerm(t *testing.T) {
	inWorld(t, func(w *world) {
		// Its heartbeat and nothing else: it will never come back.
		_, err := w.store.Lease(w.Context(), "dead", 15*time.Second)
		require.NoError(w, err)
		w.publish("t", "x", "1")
		r := w.start(forwarder.Config{})
		w.after(14 * time.Second)
		require.Empty(w, w.broker.got("x"))
		w.after(2100 * time.Millisecond)
		require.Equal(w, numbers(1, 1), w.broker.got("x"))
		_, err = r.end()
		require.NoError(w, err)
	})
}
