package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/internal/testenv"
)

// publishTo appends n messages, each in its own transaction, to one aggregate.
func (w *randomWorld) publishTo(ctx context.Context, aggregate string, n int) error {
	for i := range n {
		m := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i+1)))
		backends.SetAggregate(m, aggregate)
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.store.Publisher(tx).Publish("t", m) })
		if err != nil {
			return err
		}
	}
	return nil
}

// outcomes gives one of each kind, the last one being parked.
func outcomesOfEachKind(got []backends.Record) []backends.Outcome {
	out := deliver(got)
	kinds := []backends.Action{backends.Delivered, backends.Skip, backends.Retry, backends.Release, backends.Park}
	for i := range out {
		out[i].Action, out[i].Err = kinds[i%len(kinds)], errLost
	}
	return out
}

// What settling sets for itself ends with its transaction, whatever ends that.
func TestSettle_SettingsNeverLeak(t *testing.T) {
	own := ownDatabase(t)
	pooled, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PgBouncerURL))
	require.NoError(t, err)
	pooled.ConnConfig.Database = own.ConnConfig.Database
	pooled.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	for name, cfg := range map[string]*pgxpool.Config{"pool": own.Copy(), "pooler": pooled} {
		t.Run(name, func(t *testing.T) {
			w := worldAt(t, cfg, 0, On)
			lease, err := w.store.Lease(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			r := w.store.Reader()
			for round := range 30 {
				require.NoError(t, w.publishTo(t.Context(), "a"+strconv.Itoa(round), 1))
				require.NoError(t, w.publishTo(t.Context(), "b"+strconv.Itoa(round), 1))
				got, err := r.Read(t.Context(), lease, backends.Want{Limit: 5})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				if round%10 == 9 { // in the middle of it, or before
					time.AfterFunc(time.Duration(rand.IntN(500))*time.Microsecond, cancel)
				}
				_ = r.Settle(ctx, lease, outcomesOfEachKind(got))
				cancel()
				w.requireDefaults(t)
			}
			_, err = w.pool.Exec(t.Context(), "drop table "+w.store.names.dead)
			require.NoError(t, err)
			require.NoError(t, w.publishTo(t.Context(), "z", 1))
			got, err := r.Read(t.Context(), lease, backends.Want{Limit: 5})
			if err == nil && len(got) > 0 {
				require.Error(t, r.Settle(t.Context(), lease, []backends.Outcome{{Record: &got[0], Action: backends.Skip, Err: errLost}}))
			}
			w.requireDefaults(t)
		})
	}
}

// requireDefaults looks at the settings of every session that it gets hold of.
func (w *randomWorld) requireDefaults(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	found := make(chan string, 6)
	for range 6 {
		wg.Go(func() {
			var got string
			err := w.pool.QueryRow(t.Context(), `select concat_ws(' ', current_setting('synchronous_commit'), current_setting('enable_seqscan'),
current_setting('enable_bitmapscan'), current_setting('idle_in_transaction_session_timeout')) from pg_sleep(0.002)`).Scan(&got)
			if err != nil {
				got = err.Error()
			}
			found <- got
		})
	}
	wg.Wait()
	close(found)
	for got := range found {
		require.Equal(t, "on on on 0", got)
	}
}

// Calls are cut off at any moment. Nothing is lost, no session stays in a
// transaction, no connection is lost, and each error is that of the context.
func TestReader_CancelledAtAnyMoment(t *testing.T) {
	const records = 3000
	cfg := ownDatabase(t)
	w := worldAt(t, cfg, 0, On)
	for a := range 30 {
		require.NoError(t, w.bulkAggregate(t.Context(), "a"+strconv.Itoa(a), records/30))
	}
	lease, err := w.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	r, watch := w.store.Reader(), w.store.Watch()
	random := rand.New(rand.NewPCG(3, 4))
	seen := map[string]int{}
	cancelled := 0
	call := func(do func(ctx context.Context) error) bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if random.IntN(3) == 0 {
			time.AfterFunc(time.Duration(random.IntN(1500))*time.Microsecond, cancel)
		}
		err := do(ctx)
		if err != nil {
			require.True(t, errors.Is(err, context.Canceled), "%v", err)
			cancelled++
		}
		return err == nil
	}
	for delivered, end := 0, time.Now().Add(time.Minute); delivered < records; {
		require.True(t, time.Now().Before(end), "%d of %d were delivered", delivered, records)
		call(func(ctx context.Context) error { _, err := w.store.Lease(ctx, "a", time.Hour); return err })
		call(func(ctx context.Context) error { _, err := w.store.Backlog(ctx); return err })
		call(func(ctx context.Context) error { _, err := watch(ctx); return err })
		var got []backends.Record
		call(func(ctx context.Context) (err error) {
			got, err = r.Read(ctx, lease, backends.Want{Limit: 50})
			return err
		})
		for i := range got {
			n, _ := strconv.Atoi(string(got[i].Payload))
			require.LessOrEqual(t, n, seen[got[i].Aggregate]+1, "a record was left out")
			seen[got[i].Aggregate] = max(n, seen[got[i].Aggregate])
		}
		if call(func(ctx context.Context) error { return r.Settle(ctx, lease, deliver(got)) }) {
			delivered = 0
			for _, n := range seen {
				delivered += n
			}
		}
	}
	require.Greater(t, cancelled, 20)
	w.requireQuiet(t)
}

// bulkAggregate appends n numbered records of an aggregate at once.
func (w *randomWorld) bulkAggregate(ctx context.Context, aggregate string, n int) error {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i+1)))
		backends.SetAggregate(msgs[i], aggregate)
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.store.Publisher(tx).Publish("t", msgs...) })
}

// requireQuiet waits until no connection is lent and no session is in a
// transaction.
func (w *randomWorld) requireQuiet(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var open int
		err := w.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and state like '%transaction%'`).Scan(&open)
		return err == nil && open == 0 && w.pool.Stat().AcquiredConns() == 0
	}, 10*time.Second, 20*time.Millisecond)
}

// A column and an index come while everything runs: at most one turn fails.
func TestStore_ColumnAddedWhileRunning(t *testing.T) {
	w := newRandomWorld(t, 0, On)
	lease, err := w.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	r := w.store.Reader()
	failed, delivered := 0, 0
	for i := range 30 {
		switch i {
		case 10:
			_, err = w.pool.Exec(t.Context(), "alter table "+w.store.names.outbox+" add column tenant text")
		case 15:
			_, err = w.pool.Exec(t.Context(), "create index on "+w.store.names.outbox+" (topic)")
		case 20:
			_, err = w.pool.Exec(t.Context(), "alter table "+w.store.names.dead+" add column tenant text default 'x'")
		}
		require.NoError(t, err)
		require.NoError(t, w.publishTo(t.Context(), "x", 1), "turn %d", i)
		got, err := r.Read(t.Context(), lease, backends.Want{Limit: 10})
		if err == nil {
			err = r.Settle(t.Context(), lease, deliver(got))
		}
		if err != nil {
			failed++
			continue
		}
		delivered += len(got)
	}
	got, err := r.Read(t.Context(), lease, backends.Want{Limit: 100})
	require.NoError(t, err)
	require.Equal(t, 30, delivered+len(got))
	require.LessOrEqual(t, failed, 1)
}

// Owners come, pause beyond their term and go: no shard is held twice under one
// epoch, and none is taken before its former owner's term is over by its own
// clock.
func TestLease_NeverShared(t *testing.T) {
	w := newRandomWorld(t, 0, On)
	type holding struct {
		owner    string
		epoch    int64
		deadline time.Time
		released bool
	}
	var mu sync.Mutex
	held := map[int]holding{}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	faults := make(chan string, 1000)
	for o := range 4 {
		wg.Go(func() {
			owner, random := "owner"+strconv.Itoa(o), rand.New(rand.NewPCG(uint64(o), 9))
			for ctx.Err() == nil {
				lease, err := w.store.Lease(context.WithoutCancel(ctx), owner, 60*time.Millisecond)
				now := time.Now()
				if err != nil {
					faults <- err.Error()
					return
				}
				mu.Lock()
				for _, s := range lease.Shards {
					was := held[s.Shard]
					if was.epoch > s.Epoch {
						continue // another owner was quicker to tell
					}
					if was.owner != owner && was.epoch == s.Epoch {
						faults <- "two owners had one epoch"
					}
					if was.owner != owner && was.owner != "" && !was.released && was.deadline.After(now) {
						faults <- "a shard was taken before its term was over"
					}
					held[s.Shard] = holding{owner: owner, epoch: s.Epoch, deadline: lease.Deadline}
				}
				if random.IntN(5) == 0 {
					for _, s := range lease.Shards {
						h := held[s.Shard]
						h.released = true
						held[s.Shard] = h
					}
					mu.Unlock()
					if err := w.store.Release(context.WithoutCancel(ctx), lease); err != nil {
						faults <- err.Error()
					}
					mu.Lock()
				}
				mu.Unlock()
				nap(ctx, time.Duration(random.IntN(150))*time.Millisecond)
			}
		})
	}
	wg.Wait()
	close(faults)
	for f := range faults {
		t.Fatal(f)
	}
	require.Len(t, held, backends.Shards)
}
