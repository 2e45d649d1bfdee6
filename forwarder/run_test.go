package forwarder_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

var errStore = errors.New("the database is away")

// 1. A batch is with the broker, which takes 200 ms.
// 2. The forwarder is told to stop.
// 3. The answer comes; the batch is settled; nothing else is read.
func TestStop_TheBatchInHandIsFinishedAndSettled(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.delay = 200 * time.Millisecond
		for i := range 30 {
			w.publish("t", "a"+strconv.Itoa(i), numbers(1, 10)...)
		}
		r := w.start(forwarder.Config{Batch: 50})
		w.after(100 * time.Millisecond)
		took, err := r.end()
		require.NoError(w, err)
		require.Less(w, took, 300*time.Millisecond)
		_, accepted := w.broker.count()
		require.Equal(w, int64(300-accepted), w.backlog().Ready, "what was accepted must be settled, the rest untouched")
		require.Empty(w, w.backlog().Owners, "a stopped forwarder is still listed")
		require.Equal(w, backends.Shards, w.backlog().UnownedShards)
	})
}

// A broker that ignores its context cannot keep Run from returning.
func TestStop_IsBoundedWhateverTheBrokerDoes(t *testing.T) {
	inWorld(t, func(w *world) {
		release := make(chan struct{})
		w.broker.hook = func(context.Context) error { <-release; return nil }
		s := &shaky{Store: w.store}
		w.box = s
		w.publish("t", "x", "1")
		r := w.start(forwarder.Config{Shutdown: 2 * time.Second})
		w.after(3 * time.Second)
		took, err := r.end()
		require.ErrorContains(w, err, "did not return")
		require.LessOrEqual(w, took, 2100*time.Millisecond)
		_, _, _, settles := s.counts()
		close(release) // the broker returns at last: the store may be closed by now
		w.after(time.Minute)
		_, _, _, later := s.counts()
		require.Equal(w, settles, later, "the store was used after Run had returned")
		require.EqualValues(w, 1, w.backlog().Ready)
	})
}

// A slow broker is cut short, and what it accepted by then is settled.
func TestStop_PublishingIsCutShort(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.delay = time.Minute
		w.publish("t", "x", "1")
		r := w.start(forwarder.Config{Shutdown: 6 * time.Second, PublishTimeout: time.Hour, Lease: 2 * time.Hour, PollMax: time.Second})
		w.after(time.Second)
		took, err := r.end()
		require.ErrorContains(w, err, "cut short")
		require.LessOrEqual(w, took, 6*time.Second)
		require.EqualValues(w, 1, w.backlog().Ready)
	})
}

func TestRun_NotTwiceAtOnceAndAgainAfterwards(t *testing.T) {
	inWorld(t, func(w *world) {
		f, err := forwarder.New(w.store, w.broker, forwarder.Config{})
		require.NoError(w, err)
		for range 2 {
			ctx, stop := context.WithCancel(w.Context())
			done := make(chan error, 1)
			go func() { done <- f.Run(ctx) }()
			w.after(time.Second)
			require.ErrorIs(w, f.Run(ctx), forwarder.ErrRunning)
			stop()
			require.NoError(w, <-done)
		}
	})
}

func TestRun_AStoreThatCannotBeUsedIsSaid(t *testing.T) {
	inWorld(t, func(w *world) {
		w.box = unready{w.store}
		r := w.start(forwarder.Config{})
		require.ErrorIs(w, <-r.done, backends.ErrSchema)
	})
}

type unready struct{ backends.Outbox }

func (unready) Check(context.Context) error { return backends.ErrSchema }

// Settling fails twenty times after the broker's word: nothing is sent again
// while the lease lasts, and what is sent again after that has the same id.
func TestSettle_FailuresDoNotMultiplyMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		failures := 20
		s := &shaky{Store: w.store}
		s.settle = func() error {
			if failures--; failures >= 0 {
				return errStore
			}
			return nil
		}
		w.box = s
		w.publish("t", "x", numbers(1, 50)...)
		r := w.start(forwarder.Config{Workers: 1})
		w.after(5 * time.Minute)
		calls, accepted := w.broker.count()
		require.LessOrEqual(w, calls, 4)
		require.LessOrEqual(w, accepted, 4*50)
		require.Equal(w, numbers(1, 50), w.broker.firsts("x"))
		ids := map[string]string{}
		for _, rec := range w.broker.accepted {
			if was, ok := ids[string(rec.Payload)]; ok {
				require.Equal(w, was, rec.MessageID)
			}
			ids[string(rec.Payload)] = rec.MessageID
		}
		require.Zero(w, w.backlog().Ready)
		_, err := r.end()
		require.NoError(w, err)
	})
}

// The database is away for half a minute in every way at once.
func TestStore_AwayAndBack(t *testing.T) {
	inWorld(t, func(w *world) {
		s := &shaky{Store: w.store}
		w.box = s
		r := w.start(forwarder.Config{})
		w.after(time.Second)
		away := func() error { return errStore }
		s.set(func(s *shaky) { s.lease, s.read, s.settle, s.watch = away, away, away, away })
		w.after(time.Second)
		before, _, beats, _ := s.counts()
		w.publish("t", "x", numbers(1, 5)...)
		w.after(30 * time.Second)
		after, _, later, _ := s.counts()
		require.Less(w, after-before, 100, "a database that is away was hammered")
		require.Less(w, later-beats, 100)
		require.Less(w, strings.Count(w.logText(), "\n"), 60, "the log was flooded")
		s.set(func(s *shaky) { s.lease, s.read, s.settle, s.watch = nil, nil, nil, nil })
		w.after(11 * time.Second)
		require.Equal(w, numbers(1, 5), w.broker.firsts("x"))
		_, err := r.end()
		require.NoError(w, err)
	})
}

// What an idle forwarder asks of its store, and how soon it sees a commit.
func TestPace_IdleIsCheapAndQuick(t *testing.T) {
	inWorld(t, func(w *world) {
		s := &shaky{Store: w.store}
		w.box = s
		r := w.start(forwarder.Config{})
		w.after(12 * time.Second)
		reads, watches, beats, _ := s.counts()
		w.after(10 * time.Second)
		reads2, watches2, beats2, _ := s.counts()
		require.LessOrEqual(w, reads2-reads, 4*25, "reads of an idle forwarder in ten seconds")
		require.LessOrEqual(w, watches2-watches, 10*25)
		require.LessOrEqual(w, beats2-beats, 12)
		w.publish("t", "x", "1")
		w.after(41 * time.Millisecond)
		require.Equal(w, numbers(1, 1), w.broker.got("x"), "not seen within eight times PollMin")
		for i := range 20 { // not silent: noticed within PollMin
			w.after(100 * time.Millisecond)
			w.publish("t", "y", strconv.Itoa(i+1))
			w.after(6 * time.Millisecond)
			require.Equal(w, numbers(1, i+1), w.broker.got("y"))
		}
		_, err := r.end()
		require.NoError(w, err)
	})
}

// A store without hints is polled, less and less often.
func TestPace_WithoutHints(t *testing.T) {
	inWorld(t, func(w *world) {
		s := &shaky{Store: w.store}
		w.box = plain{s}
		r := w.start(forwarder.Config{PollMax: 500 * time.Millisecond})
		w.after(10 * time.Second)
		reads, watches, _, _ := s.counts()
		require.Zero(w, watches)
		w.after(10 * time.Second)
		reads2, _, _, _ := s.counts()
		require.LessOrEqual(w, reads2-reads, 200)
		w.publish("t", "x", "1")
		w.after(501 * time.Millisecond)
		require.Equal(w, numbers(1, 1), w.broker.got("x"))
		_, err := r.end()
		require.NoError(w, err)
	})
}

func TestNew_AllFaultsAtOnce(t *testing.T) {
	_, err := forwarder.New(nil, nil, forwarder.Config{
		Workers: -1, Batch: 1 << 30, BatchBytes: -1, PublishTimeout: -time.Second, Lease: -1, Shutdown: -1,
		RetryMin: -1, RetryMax: -2, PollMin: -1, PollMax: -2, Poison: 9, Allow: []string{""},
		Middleware: []func(backends.Broker) backends.Broker{nil},
	})
	for _, want := range []string{
		"store is nil", "broker is nil", "Workers is -1, allowed is 1 to 64", "Batch is 1073741824", "BatchBytes is -1",
		"PublishTimeout is -1s", "Shutdown is -1ns", "RetryMin is -1ns", "RetryMax is -2ns", "PollMin is -1ns",
		"PollMax is -2ns", "Poison is 9", `Allow[0] is ""`, "Middleware[0] is nil",
	} {
		require.ErrorContains(t, err, want)
	}
	inWorld(t, func(w *world) {
		for _, c := range []struct {
			cfg  forwarder.Config
			want string
		}{
			{forwarder.Config{Lease: 10 * time.Second}, "Lease is 10s, allowed is at least 15s"},
			{forwarder.Config{PollMax: time.Minute}, "PollMax is 1m0s, allowed is PollMin to Lease"},
			{forwarder.Config{RetryMax: time.Millisecond}, "RetryMax is 1ms, allowed is at least RetryMin"},
			{forwarder.Config{PollMin: time.Microsecond}, "PollMin is 1µs"},
		} {
			_, err := forwarder.New(w.store, w.broker, c.cfg)
			require.ErrorContains(w, err, c.want)
		}
		_, err := forwarder.New(w.store, w.broker, forwarder.Config{})
		require.NoError(w, err)
	})
}
