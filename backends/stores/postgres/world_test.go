package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/internal/testenv"
)

func newRandomWorld(t *testing.T, budget int, sequences Sequences) *randomWorld {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	return worldAt(t, cfg, budget, sequences)
}

// ownDatabase makes a database, in which nobody else's snapshot keeps dead rows.
func ownDatabase(t *testing.T) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	name := "w_" + strings.ToLower(rand.Text()[:12])
	admin, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig.Copy())
	require.NoError(t, err)
	_, err = admin.Exec(t.Context(), "create database "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := admin.Exec(ctx, "drop database "+name+" with (force)")
		require.NoError(t, err)
		require.NoError(t, admin.Close(ctx))
	})
	cfg.ConnConfig.Database = name
	return cfg
}

func worldAt(t *testing.T, cfg *pgxpool.Config, budget int, sequences Sequences) *randomWorld {
	t.Helper()
	cfg.MaxConns = 40
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	schema := "w_" + strings.ToLower(rand.Text()[:12])
	s, err := New(pool, Config{Schema: schema, Sequences: sequences})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop schema "+schema+" cascade")
		require.NoError(t, err)
	})
	w := &randomWorld{store: s, pool: pool, schema: schema, aggregates: 40, committed: map[string]int{}}
	w.budget.Store(int64(budget))
	require.NoError(t, w.tables(t.Context()))
	return w
}

// live runs writers, an operator and two readers until everything written is
// delivered, or a fault shows. It returns the number of reads and the fault.
func (w *randomWorld) live(t *testing.T, writers int, p plant, oracle bool) (reads int, fault error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	writing, stopWriting := context.WithCancel(ctx)
	var wg, operators sync.WaitGroup
	errs := make(chan error, writers+1)
	for i := range writers {
		wg.Go(func() { errs <- w.write(writing, uint64(i)) })
	}
	operators.Go(func() { errs <- w.requeue(writing) })
	defer func() {
		stopWriting()
		wg.Wait()
		w.busy.Wait()
		operators.Wait()
		close(errs)
		for err := range errs {
			if !errors.Is(err, context.Canceled) {
				fault = errors.Join(fault, err)
			}
		}
	}()
	r := mrand.New(mrand.NewPCG(1, 2))
	last := map[string]int{}
	readers := make([]*worldReader, 2)
	for i := range readers {
		readers[i] = &worldReader{w: w, r: r, plant: p, oracle: oracle, last: last, reader: w.store.Reader().(*reader)}
	}
	lease, err := w.store.Lease(ctx, "world", time.Hour)
	if err != nil {
		return 0, err
	}
	split := parts(lease, len(readers), r)
	quiet := time.Now()
	for {
		for i, x := range readers {
			n, err := x.turn(ctx, split[i])
			if err != nil {
				return readers[0].reads + readers[1].reads, err
			}
			if n > 0 {
				quiet = time.Now()
			}
		}
		if r.IntN(40) == 0 {
			split = parts(lease, len(readers), r) // shards change hands, nothing is in hand
			for _, x := range readers {
				x.reader.scan.Begin(backends.Lease{}, nil, time.Now())
			}
		}
		if w.budget.Load() <= 0 && time.Since(quiet) > 300*time.Millisecond {
			wg.Wait()
			w.busy.Wait()
			if done, err := w.complete(ctx, readers, quiet); done || err != nil {
				return readers[0].reads + readers[1].reads, err
			}
		}
	}
}

// complete says whether everything committed has been delivered, and what is
// missing once nothing has come for long.
func (w *randomWorld) complete(ctx context.Context, readers []*worldReader, quiet time.Time) (bool, error) {
	if err := w.requeueAll(ctx); err != nil {
		return false, err
	}
	b, err := w.store.Backlog(ctx)
	if err != nil {
		return false, err
	}
	missing := 0
	for a, n := range w.committed {
		if got := max(readers[0].last["t "+a], readers[0].last["u "+a]); got != n {
			missing++
		}
	}
	if missing == 0 && b.Ready+b.Delayed+b.Dead == 0 && readers[0].loose+readers[1].loose == w.loose {
		return true, nil
	}
	if time.Since(quiet) > 2*time.Second {
		return false, fmt.Errorf("%w: %d aggregates are not complete, the outbox holds %d, the dead letters %d", errLost, missing, b.Ready+b.Delayed, b.Dead)
	}
	return false, nil
}

// Order is lock order, nothing is lost, and each read agrees with a full read
// under the same snapshot.
func TestRandomWorld(t *testing.T) {
	budget := 100_000
	if testenv.Long() {
		budget = 1_000_000
	}
	for name, sequences := range map[string]Sequences{"sequences on": On, "sequences off": Off} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRandomWorld(t, budget/2, sequences)
			w.slow = true
			start := time.Now()
			reads, err := w.live(t, 12, plant{}, true)
			require.NoError(t, err)
			t.Logf("%d records or more, %d reads compared, %v", budget/2, reads, time.Since(start).Round(time.Second))
		})
	}
}

// lowerBefore finds the shards with new rows in a statement of its own.
func lowerBefore(ctx context.Context, r *reader) error {
	return r.store.conns.with(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select shard, min(id) - 1 from `+r.store.names.outbox+`
where xid >= $1::text::xid8 or xid = any($2::text[]::xid8[]) group by shard`, r.xmax, r.xip)
		if err != nil {
			return err
		}
		var ref backends.Ref
		_, err = pgx.ForEachRow(rows, []any{&ref.Shard, &ref.ID}, func() error {
			r.scan.Lower(ref.Shard, ref.ID)
			return nil
		})
		return err
	})
}

// Each fault planted in the reader must show.
func TestRandomWorld_PlantedFaultsShow(t *testing.T) {
	edit := func(old, fresh string) func(t *testing.T, w *randomWorld) {
		return func(t *testing.T, w *randomWorld) {
			t.Helper()
			for _, text := range []*string{&w.store.stmts.read, &w.store.stmts.settle.setAside} {
				*text = strings.ReplaceAll(*text, old, fresh)
			}
			require.NotEqual(t, newStatements(w.store.names), w.store.stmts, "the fault was not planted")
		}
	}
	for name, f := range map[string]struct {
		spoil func(t *testing.T, w *randomWorld)
		plant plant
	}{
		"transactions in progress dropped": {spoil: edit("pg_visible_in_snapshot(x, (select snap from h))", "false")},
		"cuts not lowered":                 {spoil: edit("where xid >= $1::text::xid8", "where false and xid >= $1::text::xid8")},
		"cuts ignored":                     {spoil: edit("least(t.cut, f.lo)", "coalesce(f.lo, t.cut)")},
		"two snapshots": {
			spoil: edit("where xid ", "where false and xid "),
			plant: plant{before: lowerBefore},
		},
		"order by transaction": {spoil: edit("order by o.id limit t.lim", "order by o.xid, o.id limit t.lim")},
		"snapshot of another statement": {plant: plant{after: func(ctx context.Context, r *reader) error {
			return r.store.conns.with(ctx, func(c *pgx.Conn) error {
				var snap string
				err := c.QueryRow(ctx, "select pg_current_snapshot()::text").Scan(&snap)
				r.xmax, r.xip = parseSnapshot(snap)
				return err
			})
		}}},
		"no rewind": {plant: plant{forget: true}},
		"blind park": {spoil: edit("where p.aggregate in (select aggregate from met)\n    order by p.aggregate for key share skip locked",
			"where false union all select aggregate from met where aggregate is not null")},
		"identity cache of ten": {spoil: func(t *testing.T, w *randomWorld) {
			_, err := w.pool.Exec(t.Context(), "alter table "+w.store.names.outbox+" alter column id set cache 10")
			require.NoError(t, err)
			require.ErrorContains(t, w.store.Check(t.Context()), "set cache 1")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRandomWorld(t, 30_000, Off)
			if f.spoil != nil {
				f.spoil(t, w)
			}
			reads, err := w.live(t, 12, f.plant, true)
			require.Error(t, err, "nothing showed in %d reads", reads)
			require.True(t, errors.Is(err, errLost) || errors.Is(err, errOrder), "another fault: %v", err)
			t.Logf("shown after %d reads: %v", reads, err)
		})
	}
}
