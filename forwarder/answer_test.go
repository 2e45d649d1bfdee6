package forwarder_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// 1. A topic is held back, and probed.
// 2. The broker sends nothing of the probe and blames nobody.
// 3. The topic must be probed again, not held back for ever, and not hammered.
func TestFailure_AnAnswerThatSendsNothingIsAnOutage(t *testing.T) {
	nothing := func(records int, err error) error {
		p := &backends.PartialError{}
		for i := range records {
			p.Failures = append(p.Failures, backends.Failure{Index: i, State: backends.NotSent, Err: err})
		}
		return p
	}
	for name, answer := range map[string]error{
		"without a class": nothing(3, errBad), "without a reason": nothing(3, nil), "nil answer": (*backends.PartialError)(nil),
		"no state": &backends.PartialError{Failures: []backends.Failure{{Index: 0}, {Index: 1}, {Index: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				down := true
				w.broker.hook = func(context.Context) error {
					w.broker.mu.Lock()
					defer w.broker.mu.Unlock()
					if down {
						return answer
					}
					return nil
				}
				w.publish("t", "x", numbers(1, 3)...)
				r := w.start(forwarder.Config{MaxAttempts: 2})
				w.after(time.Minute)
				calls, _ := w.broker.count()
				require.Greater(w, calls, 10, "the topic is not probed any more")
				require.Less(w, calls, 60, "the broker was hammered")
				require.NotContains(w, w.logText(), "can be reached again")
				w.broker.set(func(*fake) { down = false })
				w.after(6 * time.Second)
				require.Equal(w, numbers(1, 3), w.broker.got("x"))
				require.Zero(w, w.broker.accepted[0].Attempts)
				_, err := r.end()
				require.NoError(w, err)
			})
		})
	}
}

func TestNew_MiddlewareMustReturnABroker(t *testing.T) {
	inWorld(t, func(w *world) {
		_, err := forwarder.New(w.store, w.broker, forwarder.Config{Middleware: []func(backends.Broker) backends.Broker{
			func(backends.Broker) backends.Broker { return nil },
		}})
		require.ErrorContains(w, err, "Middleware[0] returned nil")
	})
}

// 1. The broker refuses in the middle of a batch.
// 2. The forwarder is stopped in good order.
// 3. Another starts: everything is delivered, in order, and nothing twice.
func TestStop_AfterARefusalInMidBatchNothingIsLost(t *testing.T) {
	inWorld(t, func(w *world) {
		n := 0
		w.broker.say = func(backends.Record) error {
			if n++; n > 50 {
				return errDown
			}
			return nil
		}
		w.publish("t", "x", numbers(1, 100)...)
		r := w.start(forwarder.Config{})
		w.after(time.Second)
		_, err := r.end()
		require.NoError(w, err)
		require.Equal(w, numbers(1, 50), w.broker.got("x"))
		require.EqualValues(w, 50, w.backlog().Ready)
		w.broker.set(func(f *fake) { f.say = nil })
		r = w.start(forwarder.Config{})
		w.after(2 * time.Second)
		require.Equal(w, numbers(1, 100), w.broker.got("x"))
		_, err = r.end()
		require.NoError(w, err)
	})
}
