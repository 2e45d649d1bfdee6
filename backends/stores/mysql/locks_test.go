package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

var levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}

func begin(t testing.TB, s *mysql.Store, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // after a commit it does nothing
	return tx
}

// An appending transaction locks the rows of its aggregates' counts and its own
// new rows, and never a gap, of new aggregates and of known ones. The server
// itself is asked.
func TestAppend_LocksNoGap(t *testing.T) {
	s := open(t, database(t, testenv.MySQLDSN, ""), mysql.Config{})
	require.NoError(t, publish(t.Context(), s, "t", msg("b", "1"), msg("d", "1")))
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			tx := begin(t, s, level)
			for range 2 {
				require.NoError(t, s.Publisher(tx).Publish("t", msg("b", "2")))
				require.NoError(t, s.Publisher(tx).Publish("t", msg("a", "1"), msg("b", "2"), msg("c", "1"), msg("e", "1"), msg("", "1")))
			}
			modes := locksOf(t, tx)
			slices.Sort(modes)
			modes = slices.Compact(modes)
			require.NotEmpty(t, modes)
			require.Subset(t, []string{"RECORD X,REC_NOT_GAP", "TABLE IX"}, modes)
			require.NoError(t, tx.Rollback())
		})
	}
}

// locksOf asks the server what a transaction has locked.
func locksOf(t *testing.T, tx *sql.Tx) (modes []string) {
	t.Helper()
	rows, err := tx.QueryContext(t.Context(), `select concat(lock_type, ' ', lock_mode) from performance_schema.data_locks where thread_id = ps_current_thread_id()`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var mode string
		require.NoError(t, rows.Scan(&mode))
		modes = append(modes, mode)
	}
	require.NoError(t, rows.Err())
	return modes
}

// Whoever appends for other aggregates never waits: not for a transaction that
// has appended, nor for a forwarder that stands still with a batch in hand, in
// the middle of settling it, or of a heartbeat.
func TestAppend_WaitsForNobody(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for _, retention := range []time.Duration{0, time.Hour} {
			s := open(t, dsn, mysql.Config{Retention: retention})
			for _, level := range levels {
				for i := range 20 {
					require.NoError(t, publish(t.Context(), s, "t", msg(fmt.Sprint("agg", i), "1"), msg("", "1")))
				}
				busy := begin(t, s, level)
				require.NoError(t, s.Publisher(busy).Publish("t", msg("busy", "1"), msg("", "1")))
				lease, err := s.Lease(t.Context(), "a", time.Minute)
				require.NoError(t, err)
				reader := s.Reader()
				mysql.UseFloors(reader, 0)
				got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 30})
				require.NoError(t, err)
				require.NotEmpty(t, got)

				stop := begin(t, s, sql.LevelReadCommitted) // as if in the middle of settling: all rows and shards locked
				for _, rec := range got {
					_, err = stop.ExecContext(t.Context(), fmt.Sprintf("delete from outbox where shard = %d and id = %d", rec.Shard, rec.ID))
					require.NoError(t, err)
				}
				for _, text := range []string{
					"select * from outbox_shards lock in share mode", "select * from outbox_state where name = 'leases' for update",
				} {
					_, err = stop.ExecContext(t.Context(), text)
					require.NoError(t, err)
				}
				for i := range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					require.NoError(t, publishAt(ctx, s, level, fmt.Sprint("new", i), fmt.Sprint("agg", i)))
					cancel()
				}
				require.NoError(t, stop.Rollback())
				require.NoError(t, reader.Settle(t.Context(), lease, deliveries(got)))
				require.NoError(t, busy.Rollback())
			}
		}
	})
}

// A forwarder never waits for a business transaction: it reads, settles in every
// way, and takes its heartbeats, while one has rows open in all shards.
func TestSettle_WaitsForNobody(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for i, retention := range []time.Duration{0, time.Hour} {
			s := open(t, dsn, mysql.Config{Prefix: fmt.Sprintf("r%d_", i), Retention: retention})
			require.NoError(t, publish(t.Context(), s, "t", loose(200)...))
			for _, level := range levels {
				busy := begin(t, s, level)
				require.NoError(t, s.Publisher(busy).Publish("t", loose(500)...))
				require.NoError(t, s.Publisher(busy).Publish("t", msg("x", "2")))
				require.NoError(t, publish(t.Context(), s, "u", msg("x", "1"), msg("x", "2"), msg("y", "1")))
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				lease, err := s.Lease(ctx, "a", time.Minute)
				require.NoError(t, err)
				reader := s.Reader()
				mysql.UseFloors(reader, 0)
				got, err := reader.Read(ctx, lease, backends.Want{Limit: 50})
				require.NoError(t, err)
				outcomes := deliveries(got)
				for j, action := range []backends.Action{backends.Retry, backends.Park, backends.Skip, backends.Release} {
					outcomes[j].Action, outcomes[j].Err = action, errors.New("planted")
				}
				require.NoError(t, reader.Settle(ctx, lease, outcomes))
				for range 3 {
					got, err = reader.Read(ctx, lease, backends.Want{Limit: 50})
					require.NoError(t, err)
					require.NoError(t, reader.Settle(ctx, lease, deliveries(got)))
				}
				_, err = s.Backlog(ctx)
				require.NoError(t, err)
				_, err = s.Purge(ctx, 100)
				require.NoError(t, err)
				require.NoError(t, s.Release(ctx, lease))
				cancel()
				require.NoError(t, busy.Rollback())
			}
		}
	})
}

// loose is messages without an aggregate.
func loose(n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = msg("", "x")
	}
	return out
}

// publishAt appends for aggregates in one call, in a transaction of a level.
func publishAt(ctx context.Context, s *mysql.Store, level sql.IsolationLevel, aggregates ...string) error {
	tx, err := s.DB().BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	for _, a := range aggregates {
		if err := s.Publisher(tx).Publish("t", msg(a, "x")); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

// Sixteen writers over fifty aggregates and a forwarder, in both levels: no
// deadlock, no error at all, whether a transaction takes one aggregate or many in
// one call.
func TestAppend_NoDeadlock(t *testing.T) {
	total := 2_000
	if testenv.Long() {
		total = 100_000
	}
	const writers, aggregates = 16, 50
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for i, level := range levels {
			t.Run(level.String(), func(t *testing.T) {
				s := open(t, dsn, mysql.Config{Prefix: fmt.Sprintf("l%d_", i)})
				s.DB().SetMaxIdleConns(writers + 4)
				var wg sync.WaitGroup
				errs := make(chan error, writers)
				for w := range writers {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(w), 5))
						for range total / writers {
							if err := appendSome(t.Context(), s, level, r, aggregates); err != nil {
								errs <- err
								return
							}
						}
					})
				}
				done := make(chan struct{})
				go func() { wg.Wait(); close(done) }()
				last := drainUntil(t, s, done)
				close(errs)
				for err := range errs {
					require.NoError(t, err)
				}
				require.Len(t, last, aggregates)
			})
		}
	})
}

func appendSome(ctx context.Context, s *mysql.Store, level sql.IsolationLevel, r *rand.Rand, aggregates int) error {
	tx, err := s.DB().BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	var msgs []*message.Message
	for range 1 + r.IntN(3) {
		msgs = append(msgs, msg(fmt.Sprint("agg", r.IntN(aggregates)), "x"))
	}
	if err := s.Publisher(tx).Publish("t", msgs...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// drainUntil reads and settles until done is closed and nothing is left. It
// checks that sequences come without gap, and returns the last of each aggregate.
func drainUntil(t *testing.T, s *mysql.Store, done <-chan struct{}) map[string]int64 {
	t.Helper()
	lease, err := s.Lease(t.Context(), "drain", time.Hour)
	require.NoError(t, err)
	reader, last := s.Reader(), map[string]int64{}
	for over := false; ; {
		got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 500})
		require.NoError(t, err)
		for _, rec := range got {
			if rec.Aggregate == "" {
				continue
			}
			require.Equal(t, last[rec.Aggregate]+1, rec.Sequence, rec.Aggregate)
			last[rec.Aggregate] = rec.Sequence
		}
		require.NoError(t, reader.Settle(t.Context(), lease, deliveries(got)))
		if len(got) > 0 {
			continue
		}
		if over {
			return last
		}
		select {
		case <-done:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// The limit on idling that the store's transactions set goes with them.
func TestWrite_LeavesTheSessionAsItWas(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, with(dsn, map[string]string{"wait_timeout": "1234"}), mysql.Config{})
		s.DB().SetMaxOpenConns(2)
		require.NoError(t, publish(t.Context(), s, "t", msg("x", "1")))
		lease, err := s.Lease(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		reader := s.Reader()
		got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 1})
		require.NoError(t, err)
		require.NoError(t, reader.Settle(t.Context(), lease, []backends.Outcome{{Record: &got[0], Action: backends.Park, Err: errors.New("x")}}))
		_, err = s.Requeue(t.Context(), backends.DeadTarget{Aggregate: "nobody"})
		require.ErrorIs(t, err, backends.ErrNotFound)
		for range 2 {
			conn, err := s.DB().Conn(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })
			var wait int
			require.NoError(t, conn.QueryRowContext(t.Context(), "select @@session.wait_timeout").Scan(&wait))
			require.Equal(t, 1234, wait)
		}
	})
}
