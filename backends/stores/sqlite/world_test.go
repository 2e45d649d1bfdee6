package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/internal/testenv"
)

const worldAggregates = 6

// worldMessages is how many each aggregate gets.
func worldMessages() int {
	if testenv.Long() {
		return 600
	}
	return 24
}

const worldLimit = 5 * time.Minute

// world is what owners, writers and an operator do at once, and what was heard
// of each aggregate.
type world struct {
	store *sqlite.Store
	mu    sync.Mutex
	heard map[string][]int64 // sequences as they were delivered
}

// Records fail, are released, given up and requeued at random, shards change
// hands, and every aggregate is still delivered once, from first to last. The
// operator requeues in the middle of reads.
func TestWorld_OrderOutlivesEverything(t *testing.T) {
	t.Parallel()
	w := &world{store: open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{}), heard: map[string][]int64{}}
	ctx, cancel := context.WithTimeout(t.Context(), worldLimit)
	defer cancel()
	var writers, others sync.WaitGroup
	fail := make(chan error, 16)
	spawn := func(g *sync.WaitGroup, do func(context.Context) error) {
		g.Go(func() {
			if err := do(ctx); err != nil && ctx.Err() == nil {
				fail <- err
				cancel()
			}
		})
	}
	for i := range 3 {
		spawn(&writers, func(ctx context.Context) error { return w.write(ctx, i) })
	}
	spawn(&others, w.operate)
	for _, owner := range []string{"a", "b"} {
		spawn(&others, func(ctx context.Context) error { return w.forward(ctx, owner) })
	}
	require.Eventually(t, func() bool { return ctx.Err() != nil || w.count() >= worldAggregates*worldMessages() },
		worldLimit, 5*time.Millisecond, "not everything was delivered")
	cancel()
	writers.Wait()
	others.Wait()
	close(fail)
	for err := range fail {
		require.NoError(t, err)
	}
	for i := range worldAggregates {
		want := make([]int64, worldMessages())
		for j := range want {
			want[j] = int64(j + 1)
		}
		require.Equal(t, want, w.heard[fmt.Sprint("agg", i)])
	}
}

func (w *world) count() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.heard {
		n += len(h)
	}
	return n
}

// write appends its third of each aggregate's messages, some in vain first.
func (w *world) write(ctx context.Context, writer int) error {
	for i := range worldMessages() / 3 {
		for a := range worldAggregates {
			tx, err := w.store.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := w.store.Publisher(tx).Publish("t", msg(fmt.Sprint("agg", a), "x")); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			if rand.IntN(5) == 0 {
				if err := tx.Rollback(); err != nil {
					return err
				}
				if err := appendOne(ctx, w.store, fmt.Sprint("agg", a), fmt.Sprint(writer, i)); err != nil {
					return err
				}
			} else if err := tx.Commit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// operate requeues whatever is parked.
func (w *world) operate(ctx context.Context) error {
	for ctx.Err() == nil {
		parked, err := w.store.Parked(ctx, "", 10)
		if err != nil {
			return err
		}
		if len(parked) == 0 {
			<-time.After(100 * time.Microsecond)
		}
		for _, p := range parked {
			if _, err := w.store.Requeue(ctx, backends.DeadTarget{Aggregate: p.Aggregate}); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward is an owner that comes and goes.
func (w *world) forward(ctx context.Context, owner string) error {
	for ctx.Err() == nil {
		lease, err := w.store.Lease(ctx, owner, time.Minute)
		if err != nil {
			return err
		}
		reader := w.store.Reader()
		for range 30 {
			if err := w.turn(ctx, reader, lease); err != nil {
				return err
			}
		}
		if err := w.store.Release(ctx, lease); err != nil {
			return err
		}
	}
	return nil
}

// turn reads a few and gives each an outcome. What follows a record that was not
// delivered is released, as a forwarder does.
func (w *world) turn(ctx context.Context, reader backends.Reader, lease backends.Lease) error {
	got, err := reader.Read(ctx, lease, backends.Want{Limit: 1 + rand.IntN(20)})
	if err != nil || len(got) == 0 {
		<-time.After(time.Millisecond)
		return err
	}
	stopped := map[string]bool{}
	var delivered []*backends.Record
	outcomes := make([]backends.Outcome, 0, len(got))
	for i := range got {
		r := &got[i]
		o := backends.Outcome{Record: r, Action: backends.Delivered, Err: errors.New("planted")}
		switch n := rand.IntN(12); {
		case stopped[r.Aggregate]:
			o.Action = backends.Release
		case n == 0:
			o.Action, o.After = backends.Retry, time.Millisecond
		case n <= 3:
			o.Action = backends.Park
		case n == 4:
			o.Action = backends.Release
		}
		stopped[r.Aggregate] = stopped[r.Aggregate] || o.Action != backends.Delivered
		if o.Action == backends.Delivered {
			delivered = append(delivered, r)
		}
		outcomes = append(outcomes, o)
	}
	if err := reader.Settle(context.WithoutCancel(ctx), lease, outcomes); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range delivered {
		w.heard[r.Aggregate] = append(w.heard[r.Aggregate], r.Sequence)
	}
	return nil
}
