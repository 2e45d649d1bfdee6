package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

var (
	errBad  = errors.New("bad record")
	errDown = backends.Unavailable(errors.New("down"))
)

// bad refuses records with this payload in aggregate x.
func bad(payload string, err error) func(backends.Record) error {
	return func(r backends.Record) error {
		if r.Aggregate == "x" && string(r.Payload) == payload {
			return err
		}
		return nil
	}
}

func TestFailure_PermanentParksTheAggregateAndNothingElse(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = bad("2", backends.Permanent(errBad))
		w.publish("t", "x", numbers(1, 4)...)
		w.publish("t", "y", numbers(1, 4)...)
		r := w.start(forwarder.Config{})
		w.after(2 * time.Second)
		require.Equal(w, numbers(1, 1), w.broker.got("x"))
		require.Equal(w, numbers(1, 4), w.broker.got("y"))
		require.Len(w, w.dead(), 3)
		require.Contains(w, w.logText(), "given up")
		// Mended and requeued, it goes on in order, before what came since.
		w.broker.set(func(f *fake) { f.say = nil })
		w.publish("t", "x", "5")
		_, err := w.store.Requeue(w.Context(), backends.DeadTarget{Aggregate: "x"})
		require.NoError(w, err)
		w.after(2 * time.Second)
		require.Equal(w, numbers(1, 5), w.broker.got("x"))
		_, err = r.end()
		require.NoError(w, err)
	})
}

func TestFailure_SkipSetsOneAside(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = bad("2", backends.Permanent(errBad))
		w.publish("t", "x", numbers(1, 4)...)
		r := w.start(forwarder.Config{Poison: forwarder.Skip})
		w.after(2 * time.Second)
		require.Equal(w, []string{"1", "3", "4"}, w.broker.got("x"))
		require.Len(w, w.dead(), 1)
		_, err := r.end()
		require.NoError(w, err)
	})
}

func TestFailure_BlockNeverGivesUp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = bad("2", backends.Permanent(errBad))
		w.publish("t", "x", numbers(1, 3)...)
		r := w.start(forwarder.Config{Poison: forwarder.Block, MaxAttempts: 2, RetryMax: time.Second})
		w.after(time.Minute)
		require.Equal(w, []string{"1"}, w.broker.got("x"))
		require.Empty(w, w.dead())
		w.broker.set(func(f *fake) { f.say = nil })
		w.after(5 * time.Second)
		require.Equal(w, numbers(1, 3), w.broker.got("x"))
		_, err := r.end()
		require.NoError(w, err)
	})
}

// The failed record is tried MaxAttempts times, and what follows it waits.
func TestFailure_AttemptsAreCountedAndRetriesNotOvertaken(t *testing.T) {
	inWorld(t, func(w *world) {
		tries := 0
		w.broker.say = func(r backends.Record) error {
			if r.Aggregate == "x" && string(r.Payload) == "1" {
				tries++
				return errBad
			}
			return nil
		}
		w.publish("t", "x", numbers(1, 3)...)
		r := w.start(forwarder.Config{MaxAttempts: 4})
		for i := range 60 { // others reach the broker meanwhile
			w.publish("t", "y", strconv.Itoa(i))
			w.after(time.Second)
		}
		// Failures with nothing accepted between may be the broker's. They are not
		// counted, and the breaker paces them.
		require.LessOrEqual(w, tries, 40)
		require.Empty(w, w.broker.got("x"), "a later record overtook the failed one")
		dead := w.dead()
		require.Len(w, dead, 3)
		require.Equal(w, 4, dead[0].Attempts)
		require.Equal(w, "bad record", dead[0].LastError)
		_, err := r.end()
		require.NoError(w, err)
	})
}

func TestFailure_OneRetryThenOrder(t *testing.T) {
	inWorld(t, func(w *world) {
		failed := false
		w.broker.say = func(r backends.Record) error {
			if r.Aggregate == "x" && !failed {
				failed = true
				return errBad
			}
			return nil
		}
		w.publish("t", "x", numbers(1, 3)...)
		w.publish("t", "y", "1")
		r := w.start(forwarder.Config{})
		w.after(10 * time.Second)
		require.Equal(w, numbers(1, 3), w.broker.got("x"))
		_, err := r.end()
		require.NoError(w, err)
	})
}

// A broker that refuses everything is out of order, whatever it says.
func TestFailure_AnOutageBurnsNoAttempts(t *testing.T) {
	for name, err := range map[string]error{"unavailable": errDown, "without a class": errBad} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.broker.say = func(backends.Record) error { return err }
				for i := range 20 {
					w.publish("t", "a"+strconv.Itoa(i), numbers(1, 3)...)
				}
				r := w.start(forwarder.Config{MaxAttempts: 2})
				w.after(10 * time.Minute)
				calls, _ := w.broker.count()
				require.Less(w, calls, 400, "a broker that is down was hammered")
				require.Less(w, strings.Count(w.logText(), "\n"), 200, "the log was flooded")
				require.Empty(w, w.dead())
				w.broker.set(func(f *fake) { f.say = nil })
				w.after(6 * time.Second)
				for i := range 20 {
					require.Equal(w, numbers(1, 3), w.broker.got("a"+strconv.Itoa(i)), "not recovered within six seconds")
				}
				w.broker.set(func(f *fake) {
					for _, rec := range f.accepted {
						require.Zero(w, rec.Attempts)
					}
				})
				_, e := r.end()
				require.NoError(w, e)
			})
		})
	}
}

// One topic hangs until its limit each time; the other does not notice.
func TestFailure_AHangingTopicStopsOnlyItself(t *testing.T) {
	inWorld(t, func(w *world) {
		w.box = w.store
		hang := true
		w.broker.hook = nil
		b := &byTopic{fake: w.broker, hang: &hang}
		f, err := forwarder.New(w.store, b, forwarder.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(w, err)
		ctx, stop := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		w.publish("down", "d", numbers(1, 3)...)
		w.after(15 * time.Second) // the first batch finds out
		var worst time.Duration
		for i := range 200 {
			start := time.Now()
			w.publish("up", "u", strconv.Itoa(i))
			for len(w.broker.got("u")) <= i {
				w.after(time.Millisecond)
			}
			worst = max(worst, time.Since(start))
			w.after(100 * time.Millisecond)
		}
		require.Less(w, worst, 100*time.Millisecond, "a topic that hangs held up another")
		require.Empty(w, w.broker.got("d"))
		w.broker.set(func(*fake) { hang = false })
		w.after(20 * time.Second)
		require.Equal(w, numbers(1, 3), w.broker.firsts("d"))
		stop()
		require.NoError(w, <-done)
		require.Zero(w, w.backlog().Ready)
	})
}

// byTopic hangs when a batch has records of the topic "down".
type byTopic struct {
	*fake
	hang *bool
}

func (b *byTopic) Publish(ctx context.Context, records []backends.Record) error {
	b.mu.Lock()
	hang := *b.hang
	b.mu.Unlock()
	for _, r := range records {
		if r.Topic == "down" && hang {
			<-ctx.Done()
			return fmt.Errorf("hung: %w", context.Cause(ctx))
		}
	}
	return b.fake.Publish(ctx, records)
}

// Ten records that always fail are at the head of a batch of ten.
func TestFailure_PoisonAtTheHeadStarvesNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = func(r backends.Record) error {
			if r.Topic == "forbidden" {
				return errBad
			}
			return nil
		}
		for i := range 10 {
			w.publish("forbidden", "p"+strconv.Itoa(i), "1")
		}
		for i := range 1000 {
			w.publish("t", "a"+strconv.Itoa(i), "1")
		}
		r := w.start(forwarder.Config{Batch: 10, MaxAttempts: 3})
		w.after(2 * time.Second)
		_, accepted := w.broker.count()
		require.Equal(w, 1000, accepted)
		for i := range 60 {
			w.publish("t", "later", strconv.Itoa(i))
			w.after(time.Second)
		}
		require.Len(w, w.dead(), 10)
		_, err := r.end()
		require.NoError(w, err)
	})
}

func TestFailure_TopicsNotAllowedAreGivenUpUnsent(t *testing.T) {
	inWorld(t, func(w *world) {
		w.publish("orders", "x", "1")
		w.publish("elsewhere", "x", "2")
		w.publish("orders", "x", "3")
		w.publish("orders", "y", "1")
		r := w.start(forwarder.Config{Allow: []string{"orders"}})
		w.after(3 * time.Second)
		require.Equal(w, numbers(1, 1), w.broker.got("x"))
		require.Equal(w, numbers(1, 1), w.broker.got("y"))
		dead := w.dead()
		require.Len(w, dead, 2)
		require.Contains(w, dead[0].LastError, "Allow")
		_, err := r.end()
		require.NoError(w, err)
	})
}

// Answers that do not fit the batch, and panics, say that nothing is known.
func TestFailure_NonsenseFromTheBrokerLosesNothing(t *testing.T) {
	for name, answer := range map[string]func() error{
		"index out of range": func() error { return &backends.PartialError{Failures: []backends.Failure{{Index: 99, Err: errBad}}} },
		"negative index":     func() error { return &backends.PartialError{Failures: []backends.Failure{{Index: -1, Err: errBad}}} },
		"unsorted": func() error {
			return &backends.PartialError{Failures: []backends.Failure{{Index: 1, Err: errBad}, {Index: 0, Err: errBad}}}
		},
		"panic": func() error { panic("secret payload") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				broken := true
				w.broker.hook = func(context.Context) error {
					if broken {
						return answer()
					}
					return nil
				}
				w.publish("t", "x", numbers(1, 3)...)
				r := w.start(forwarder.Config{})
				w.after(10 * time.Second)
				require.EqualValues(w, 3, w.backlog().Ready)
				w.broker.set(func(*fake) { broken = false })
				w.after(10 * time.Second)
				require.Equal(w, numbers(1, 3), w.broker.got("x"))
				require.Zero(w, w.broker.accepted[0].Attempts)
				require.NotContains(w, w.logText(), "secret")
				_, err := r.end()
				require.NoError(w, err)
			})
		})
	}
}

func TestHooks_APanicChangesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		boom := func() { panic("secret") }
		r := w.start(forwarder.Config{Hooks: forwarder.Hooks{
			Run:       func(context.Context) context.Context { boom(); return nil },
			Read:      func(context.Context, []backends.Record, time.Duration, error) context.Context { boom(); return nil },
			Done:      func(context.Context) { boom() },
			Released:  func(context.Context, backends.Lease, error) { boom() },
			Purged:    func(context.Context, int, error) { boom() },
			Log:       func(context.Context, *backends.Record) context.Context { boom(); return nil },
			Publish:   func(context.Context, []backends.Record) context.Context { boom(); return nil },
			Published: func(context.Context, []backends.Record, time.Duration, error) { boom() },
			Settled:   func(context.Context, []backends.Outcome, error) { boom() },
			Leased:    func(context.Context, backends.Lease, error) { boom() },
			Breaker:   func(string, error) { boom() },
		}})
		w.publish("t", "x", numbers(1, 3)...)
		w.after(3 * time.Second)
		require.Equal(w, numbers(1, 3), w.broker.got("x"))
		require.Zero(w, w.backlog().Ready)
		require.NotContains(w, w.logText(), "secret")
		_, err := r.end()
		require.NoError(w, err)
	})
}

func TestMiddleware_TheFirstIsOutermost(t *testing.T) {
	inWorld(t, func(w *world) {
		var order []string
		named := func(name string) func(backends.Broker) backends.Broker {
			return func(b backends.Broker) backends.Broker { return &tracing{b, func() { order = append(order, name) }} }
		}
		r := w.start(forwarder.Config{Middleware: []func(backends.Broker) backends.Broker{named("outer"), named("inner")}})
		w.publish("t", "x", "1")
		w.after(2 * time.Second)
		_, err := r.end()
		require.NoError(w, err)
		require.Equal(w, []string{"outer", "inner"}, order)
	})
}

type tracing struct {
	backends.Broker
	seen func()
}

func (t *tracing) Publish(ctx context.Context, records []backends.Record) error {
	t.seen()
	return t.Broker.Publish(ctx, records)
}
