package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/testenv"
)

const (
	worldAggregates = 12
	worldWriters    = 6
	worldLimit      = 10 * time.Minute
)

// worldTurns is how many transactions each writer commits.
func worldTurns() int {
	if testenv.Long() {
		return 1500
	}
	return 60
}

// world is what owners, writers and an operator do at once, and what was heard
// of each aggregate.
type world struct {
	store  *mysql.Store
	floors bool

	mu        sync.Mutex
	committed map[string]int
	heard     map[string][]int64 // sequences as they were delivered
}

// Transactions commit late, roll back, and take several aggregates; records fail,
// are released, given up and requeued at random; shards change hands. Every
// aggregate is still delivered once, from first to last, with floors and without.
func TestWorld_OrderOutlivesEverything(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for name, cfg := range map[string]struct {
			prefix string
			floors bool
		}{"from the start": {"a_", false}, "from floors": {"b_", true}} {
			t.Run(name, func(t *testing.T) {
				w := &world{
					store: open(t, dsn, mysql.Config{Prefix: cfg.prefix}), floors: cfg.floors,
					committed: map[string]int{}, heard: map[string][]int64{},
				}
				w.run(t)
			})
		}
	})
}

func (w *world) run(t *testing.T) {
	t.Helper()
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
	for i := range worldWriters {
		spawn(&writers, func(ctx context.Context) error { return w.write(ctx, rand.New(rand.NewPCG(uint64(i), 3))) })
	}
	spawn(&others, w.operate)
	for _, owner := range []string{"a", "b"} {
		spawn(&others, func(ctx context.Context) error { return w.forward(ctx, owner) })
	}
	writers.Wait()
	require.Eventually(t, func() bool { return ctx.Err() != nil || w.complete() },
		worldLimit, 5*time.Millisecond, "not everything was delivered")
	cancel()
	others.Wait()
	close(fail)
	for err := range fail {
		require.NoError(t, err)
	}
	for aggregate, n := range w.committed {
		want := make([]int64, n)
		for j := range want {
			want[j] = int64(j + 1)
		}
		require.Equal(t, want, w.heard[aggregate])
	}
}

func (w *world) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, n := range w.committed {
		if len(w.heard[a]) < n {
			return false
		}
	}
	return true
}

// write commits transactions of all kinds. A deadlock between publishes of one
// transaction is its own doing, and tried again.
func (w *world) write(ctx context.Context, r *rand.Rand) error {
	for done := 0; done < worldTurns(); {
		took, err := w.transaction(ctx, r)
		var refused *driver.MySQLError
		switch {
		case errors.As(err, &refused) && (refused.Number == 1213 || refused.Number == 1020):
			continue
		case err != nil:
			return err
		}
		w.mu.Lock()
		for a, n := range took {
			w.committed[a] += n
		}
		w.mu.Unlock()
		done++
	}
	return nil
}

func (w *world) transaction(ctx context.Context, r *rand.Rand) (map[string]int, error) {
	level := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}[r.IntN(2)]
	tx, err := w.store.DB().BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return nil, err
	}
	took := map[string]int{}
	for range 1 + r.IntN(2) {
		var msgs []*message.Message
		for range 1 + r.IntN(4) {
			a := fmt.Sprint("agg", r.IntN(worldAggregates))
			took[a]++
			msgs = append(msgs, msg(a, "x"))
		}
		if err := w.store.Publisher(tx).Publish("t", msgs...); err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		if r.IntN(8) == 0 {
			<-time.After(time.Duration(r.IntN(200)) * time.Millisecond) // commits late
		}
	}
	if r.IntN(6) == 0 {
		return nil, tx.Rollback()
	}
	return took, tx.Commit()
}

// operate requeues whatever is parked.
func (w *world) operate(ctx context.Context) error {
	for ctx.Err() == nil {
		parked, err := w.store.Parked(ctx, "", 10)
		if err != nil {
			return err
		}
		if len(parked) == 0 {
			<-time.After(time.Millisecond)
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
	reader := w.store.Reader()
	for ctx.Err() == nil {
		lease, err := w.store.Lease(ctx, owner, time.Minute)
		if err != nil {
			return err
		}
		if rand.IntN(2) == 0 {
			reader = w.store.Reader() // or the old one, which has memory
		}
		if w.floors {
			mysql.UseFloors(reader, 100*time.Millisecond)
		}
		for range 60 {
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
	got, err := reader.Read(ctx, lease, backends.Want{Limit: 1 + rand.IntN(50)})
	if err != nil || len(got) == 0 {
		<-time.After(time.Millisecond)
		return err
	}
	stopped := map[string]bool{}
	outcomes := make([]backends.Outcome, 0, len(got))
	for i := range got {
		r := &got[i]
		o := backends.Outcome{Record: r, Action: backends.Delivered, Err: errors.New("planted")}
		switch n := rand.IntN(40); {
		case stopped[r.Aggregate]:
			o.Action = backends.Release
		case n == 0:
			o.Action, o.After = backends.Retry, time.Millisecond
		case n <= 2:
			o.Action = backends.Park
		case n == 3:
			o.Action = backends.Release
		}
		stopped[r.Aggregate] = stopped[r.Aggregate] || o.Action != backends.Delivered
		outcomes = append(outcomes, o)
	}
	if err := reader.Settle(context.WithoutCancel(ctx), lease, outcomes); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range outcomes {
		if o.Action == backends.Delivered {
			w.heard[o.Record.Aggregate] = append(w.heard[o.Record.Aggregate], o.Record.Sequence)
		}
	}
	return nil
}
