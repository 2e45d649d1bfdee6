package mysql_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
)

// crashWorld appends and delivers while its server comes and goes.
type crashWorld struct {
	store *mysql.Store
	stop  atomic.Bool // no more is written

	mu        sync.Mutex
	committed map[string]int64 // answered commits of each aggregate
	heard     map[string]int64 // the last sequence delivered, each
	total     int
}

// write appends until it is told to stop. A commit without an answer may have
// happened.
func (w *crashWorld) write(ctx context.Context, aggregate string) {
	for ctx.Err() == nil && !w.stop.Load() {
		if err := publish(ctx, w.store, "t", msg(aggregate, "x")); err != nil {
			<-time.After(20 * time.Millisecond)
			continue
		}
		w.mu.Lock()
		w.committed[aggregate]++
		w.mu.Unlock()
	}
}

// forward reads and settles with one reader. What it hears is the next of its
// aggregate, or a repeat.
func (w *crashWorld) forward(ctx context.Context) error {
	reader := w.store.Reader()
	var lease backends.Lease
	for ctx.Err() == nil {
		if time.Until(lease.Deadline) < 5*time.Second {
			l, err := w.store.Lease(ctx, "a", 10*time.Second)
			if err != nil {
				<-time.After(20 * time.Millisecond)
				continue
			}
			lease = l
		}
		got, err := reader.Read(ctx, lease, backends.Want{Limit: 50})
		if err != nil || len(got) == 0 {
			<-time.After(5 * time.Millisecond)
			continue
		}
		for _, r := range got {
			if err := w.hear(&r); err != nil {
				return err
			}
		}
		_ = reader.Settle(ctx, lease, deliveries(got)) // without an answer they come again
	}
	return nil
}

func (w *crashWorld) hear(r *backends.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch last := w.heard[r.Aggregate]; {
	case r.Sequence == last+1:
		w.heard[r.Aggregate] = r.Sequence
		w.total++
	case r.Sequence > last:
		return fmt.Errorf("%s: %d came after %d", r.Aggregate, r.Sequence, last)
	}
	return nil
}

func (w *crashWorld) await(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.total >= n
	}, time.Minute, 10*time.Millisecond, "nothing comes any more")
}

func (w *crashWorld) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, n := range w.committed {
		if w.heard[a] < n {
			return false
		}
	}
	return true
}
