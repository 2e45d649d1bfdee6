package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/consumer"
)

// 1. A process handles 1 and dies before it drains 2, which waits behind it.
// 2. Nothing is delivered again: the broker was told of both.
// 3. Run finds it.
func TestRun_SweepsWhatACrashLeft(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		died := w.instance(consumer.Config{}, nil)
		died.gives(consumer.Buffered, order("a", 2))
		in, err := w.store.Inbox(backends.InboxConfig{Name: "billing", Retention: time.Hour, LockTimeout: limit})
		require.NoError(t, err)
		one := order("a", 1)
		tx, s, err := in.Begin(t.Context(), &backends.Delivery{
			InboxKey: backends.InboxKey{Topic: "orders", Aggregate: "a"}, MessageID: one.UUID, Sequence: 1, Metadata: one.Metadata,
		}, backends.InSequence)
		require.NoError(t, err)
		require.Equal(t, backends.Fresh, s.Place)
		require.NoError(t, w.apply(tx.Context(t.Context()), one))
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, []string{"a/1"}, w.effects())

		i := w.instance(consumer.Config{SweepInterval: 10 * time.Millisecond}, nil)
		i.run()
		w.eventually("a/1", "a/2")
	})
}

func TestRun_ABufferedMessageThatFailsIsTriedAgain(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		n := 0
		i := w.instance(consumer.Config{SweepInterval: 10 * time.Millisecond}, func(msg *message.Message) ([]*message.Message, error) {
			if label(msg) == "a/2" {
				if n++; n < 3 {
					return nil, errors.New("not yet")
				}
			}
			return nil, nil
		})
		i.gives(consumer.Buffered, order("a", 3))
		i.gives(consumer.Buffered, order("a", 2))
		i.gives(consumer.Processed, order("a", 1))
		i.run()
		w.eventually("a/1", "a/2", "a/3")
	})
}

func TestRun_ABufferedMessageThatKeepsFailingParks(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{SweepInterval: 10 * time.Millisecond, MaxAttempts: 2}, func(msg *message.Message) ([]*message.Message, error) {
			if label(msg) == "a/2" {
				return nil, errors.New("never")
			}
			return nil, nil
		})
		i.gives(consumer.Buffered, order("a", 3))
		i.gives(consumer.Buffered, order("a", 2))
		i.run()
		i.gives(consumer.Processed, order("a", 1))
		for e := i.event(); e.Outcome != consumer.DeadLettered; e = i.event() {
			require.Equal(t, consumer.Failed, e.Outcome)
		}
		require.Equal(t, []string{"a/1"}, w.effects())
		dead, err := i.dead().Dead(t.Context(), backends.InboxDeadFilter{})
		require.NoError(t, err)
		require.Len(t, dead, 2)
		require.Equal(t, "a-2", dead[0].MessageID)
		require.Equal(t, 2, dead[0].Attempts)
	})
}

// timed runs a test on the memory store in time of its own.
func timed(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { test(t, memoryWorld(t)) })
}

// words is a list that several goroutines use.
type words struct {
	mu   sync.Mutex
	list []string
}

func (w *words) add(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, s)
}

func (w *words) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

func TestRun_Gaps(t *testing.T) {
	start := func(w *world, on consumer.OnGap, resolutions *words) *instance {
		i := w.instance(consumer.Config{OnGap: on, GapTimeout: time.Minute, Hooks: consumer.Hooks{
			Gap: func(_ backends.InboxWaiting, how string) { resolutions.add(how) },
		}}, nil)
		i.run()
		i.gives(consumer.Processed, order("a", 1))
		i.gives(consumer.Buffered, order("a", 3))
		<-time.After(50 * time.Second)
		synctest.Wait()
		require.Empty(w.t, resolutions.all(), "before its time")
		<-time.After(20 * time.Second)
		synctest.Wait()
		return i
	}
	t.Run("held, and said once a minute", func(t *testing.T) {
		timed(t, func(t *testing.T, w *world) {
			var how words
			i := start(w, consumer.Hold, &how)
			<-time.After(10*time.Minute + 30*time.Second)
			synctest.Wait()
			require.Len(t, how.all(), 11)
			require.Contains(t, i.log.String(), "expected=2 found=3")
			i.gives(consumer.Processed, order("a", 2))
			require.Equal(t, []string{"a/1", "a/2", "a/3"}, w.effects())
		})
	})
	t.Run("skipped", func(t *testing.T) {
		timed(t, func(t *testing.T, w *world) {
			var how words
			i := start(w, consumer.Skip, &how)
			require.Equal(t, []string{"skipped"}, how.all())
			require.Equal(t, []string{"a/1", "a/3"}, w.effects())
			require.True(t, i.event().FromBuffer)
			require.Equal(t, backends.ReasonLate, i.gives(consumer.DeadLettered, order("a", 2)).Reason)
		})
	})
	t.Run("parked", func(t *testing.T) {
		timed(t, func(t *testing.T, w *world) {
			var how words
			i := start(w, consumer.Park, &how)
			require.Equal(t, []string{"parked"}, how.all())
			i.gives(consumer.DeadLettered, order("a", 2))
			n, err := i.dead().Requeue(t.Context(), backends.InboxTarget{Key: backends.InboxKey{Topic: "orders", Aggregate: "a"}})
			require.NoError(t, err)
			require.Equal(t, 2, n)
			<-time.After(2 * time.Second)
			synctest.Wait()
			require.Equal(t, []string{"a/1", "a/2", "a/3"}, w.effects())
		})
	})
	t.Run("ended by an operator", func(t *testing.T) {
		timed(t, func(t *testing.T, w *world) {
			var how words
			i := start(w, consumer.Hold, &how)
			done, err := i.SkipGap(t.Context(), backends.InboxKey{Topic: "orders", Aggregate: "a"})
			require.NoError(t, err)
			require.True(t, done)
			synctest.Wait()
			require.Equal(t, []string{"a/1", "a/3"}, w.effects())
		})
	})
}

func TestRun_FirstSightIsAdoptedAfterTheGapTime(t *testing.T) {
	timed(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{GapTimeout: time.Minute}, nil)
		i.run()
		i.gives(consumer.Buffered, order("a", 8))
		i.gives(consumer.Buffered, order("a", 7))
		<-time.After(59 * time.Second)
		require.Empty(t, w.effects())
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"a/7", "a/8"}, w.effects())
		i.gives(consumer.Processed, order("a", 9))
	})
}

func TestReject_RefusesForATimeThenBuffers(t *testing.T) {
	timed(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{Sequence: consumer.Reject}, nil)
		i.run()
		i.gives(consumer.Processed, order("a", 1))
		start := time.Now()
		n := 0
		for ; i.deliver(order("a", 3)) != nil; n++ {
			require.ErrorIs(t, i.lastError(), consumer.ErrAhead)
		}
		require.Greater(t, n, 1)
		require.InDelta(t, 2, time.Since(start).Seconds(), 0.2)
		require.NoError(t, i.deliver(order("a", 2)))
		require.Equal(t, []string{"a/1", "a/2", "a/3"}, w.effects())
	})
}

func (i *instance) lastError() (err error) {
	for len(i.events) > 0 {
		if e := <-i.events; e.Err != nil {
			err = e.Err
		}
	}
	return err
}

func TestBuffer_HasLimits(t *testing.T) {
	timed(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{BufferAggregate: 2, BufferTotal: 3}, nil)
		i.gives(consumer.Buffered, order("a", 2))
		i.gives(consumer.Buffered, order("a", 3))
		require.ErrorIs(t, i.gives(consumer.Failed, order("a", 4)).Err, consumer.ErrFull)
		i.gives(consumer.Buffered, order("b", 2))
		require.ErrorIs(t, i.gives(consumer.Failed, order("b", 3)).Err, consumer.ErrFull)
		i.gives(consumer.Processed, order("a", 1))
		require.Equal(t, []string{"a/1", "a/2", "a/3"}, w.effects())
		i.gives(consumer.Processed, order("a", 4))
	})
	// Another process handles what this one has put there.
	timed(t, func(t *testing.T, w *world) {
		one := w.instance(consumer.Config{BufferTotal: 1}, nil)
		other := w.instance(consumer.Config{}, nil)
		for n := int64(1); n < 9; n += 2 {
			one.gives(consumer.Buffered, order("a", n+1))
			other.gives(consumer.Processed, order("a", n))
		}
		require.Len(t, w.effects(), 8)
	})
	timed(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{BufferAggregate: 2, OnFull: consumer.ParkFull}, nil)
		i.gives(consumer.Buffered, order("a", 2))
		i.gives(consumer.Buffered, order("a", 3))
		i.gives(consumer.DeadLettered, order("a", 4))
		p, err := i.dead().Parked(t.Context(), backends.InboxKey{}, 10)
		require.NoError(t, err)
		require.Equal(t, backends.ReasonFull, p[0].Reason)
		require.EqualValues(t, 3, p[0].Letters)
	})
}

func TestRun_ItsAbsenceIsNoticed(t *testing.T) {
	timed(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{}, nil)
		i.gives(consumer.Processed, order("a", 1))
		require.NotContains(t, i.log.String(), "Consumer.Run")
		<-time.After(11 * time.Second)
		i.gives(consumer.Processed, order("a", 2))
		require.Contains(t, i.log.String(), "Consumer.Run does not run")
		i.run()
		synctest.Wait()
		require.ErrorIs(t, i.Run(t.Context()), consumer.ErrRunning)
	})
}

func TestRun_PurgesAndWatchesTheAgeOfRedeliveries(t *testing.T) {
	timed(t, func(t *testing.T, w *world) {
		var told words
		i := w.instance(consumer.Config{Redelivery: time.Hour, Retention: 2 * time.Hour, Hooks: consumer.Hooks{
			Purged:         func(n int) { told.add(fmt.Sprint("purged ", n)) },
			LateRedelivery: func(backends.InboxKey, time.Duration, time.Duration) { told.add("late") },
		}}, nil)
		i.run()
		m := message.NewMessage("plain", nil)
		i.gives(consumer.Processed, m)
		<-time.After(time.Hour)
		i.gives(consumer.Duplicate, m)
		require.Empty(t, told.all())
		<-time.After(50 * time.Minute)
		i.gives(consumer.Duplicate, m)
		require.Equal(t, []string{"late"}, told.all())
		require.Contains(t, i.log.String(), "raise Retention")
		<-time.After(15 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"late", "purged 1"}, told.all())
	})
}

func TestNew_ReportsEveryFault(t *testing.T) {
	w := memoryWorld(t)
	_, err := consumer.New(w.store, consumer.Config{Sequence: 9, OnGap: 9, OnFull: 9, Redelivery: 48 * time.Hour, Retention: time.Hour, BufferTotal: -1})
	for _, want := range []string{"Name", "Sequence", "OnGap", "OnFull", "BufferTotal", "Retention is 1h0m0s and Redelivery is 48h0m0s"} {
		require.ErrorContains(t, err, want)
	}
	_, err = consumer.New(nil, consumer.Config{Name: "x"})
	require.ErrorContains(t, err, "nil")
}

func TestRun_AStoreThatCannotBeUsed(t *testing.T) {
	w := memoryWorld(t)
	c, err := consumer.New(broken{w.store}, consumer.Config{Name: "x"})
	require.NoError(t, err)
	require.ErrorIs(t, c.Run(t.Context()), backends.ErrSchema)
}

// broken is a store without tables.
type broken struct{ backends.Inboxes }

func (b broken) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	in, err := b.Inboxes.Inbox(cfg)
	return noTables{in.(wholeInbox)}, err
}

type noTables struct{ wholeInbox }

func (noTables) Check(context.Context) error { return backends.ErrSchema }

type wholeInbox interface {
	backends.Inbox
	backends.InboxUpkeep
	backends.InboxDeadLetters
}
