package forwarder_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/forwarder"
)

// 1. A call of the store does not return.
// 2. The forwarder is told to stop, with two seconds for it.
// 3. Run returns in time and says so, and no call of the store is left running.
func TestStop_AHungStoreIsLeftInTime(t *testing.T) {
	for _, call := range []string{"read", "settle", "lease", "watch"} {
		t.Run(call, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := &hung{Store: w.store}
				w.box = s
				r := w.start(forwarder.Config{Shutdown: 2 * time.Second})
				w.after(3 * time.Second)
				s.hang.Store(&call)
				w.publish("t", "x", numbers(1, 3)...)
				w.after(1500 * time.Millisecond)
				require.Positive(w, s.calls.Load())
				took, err := r.end()
				require.ErrorContains(w, err, "the store did not answer")
				require.LessOrEqual(w, took, 2*time.Second)
				w.after(0)
				require.Zero(w, s.calls.Load(), "a call of the store outlived Run")
			})
		})
	}
}

// hung is an outbox of which one kind of call returns only when its context ends.
type hung struct {
	*memory.Store
	hang  atomic.Pointer[string]
	calls atomic.Int64 // that hang now
}

func (h *hung) wait(ctx context.Context, call string) error {
	if hang := h.hang.Load(); hang == nil || *hang != call {
		return nil
	}
	h.calls.Add(1)
	defer h.calls.Add(-1)
	<-ctx.Done()
	return errors.Join(errStore, context.Cause(ctx))
}

func (h *hung) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if err := h.wait(ctx, "lease"); err != nil {
		return backends.Lease{}, err
	}
	return h.Store.Lease(ctx, owner, ttl)
}

func (h *hung) Watch() func(ctx context.Context) (bool, error) {
	watch := h.Store.Watch()
	return func(ctx context.Context) (bool, error) {
		if err := h.wait(ctx, "watch"); err != nil {
			return false, err
		}
		return watch(ctx)
	}
}

func (h *hung) Reader() backends.Reader { return &hungReader{h.Store.Reader(), h} }

type hungReader struct {
	backends.Reader
	h *hung
}

func (r *hungReader) Read(ctx context.Context, l backends.Lease, want backends.Want) ([]backends.Record, error) {
	if err := r.h.wait(ctx, "read"); err != nil {
		return nil, err
	}
	return r.Reader.Read(ctx, l, want)
}

func (r *hungReader) Settle(ctx context.Context, l backends.Lease, outcomes []backends.Outcome) error {
	if err := r.h.wait(ctx, "settle"); err != nil {
		return err
	}
	return r.Reader.Settle(ctx, l, outcomes)
}
