package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/testenv"
)

// A floor stays below a row that a transaction has open, is put in once it is
// decided, and what the transaction left is read first.
func TestFloor_WaitsForLateCommits(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for i, commits := range []bool{true, false} {
			s := open(t, dsn, mysql.Config{Prefix: []string{"c_", "r_"}[i]})
			lease, err := s.Lease(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			reader := s.Reader()
			mysql.UseFloors(reader, time.Millisecond)
			turn := func() (payloads []string, shard int) {
				got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 100})
				require.NoError(t, err)
				require.NoError(t, reader.Settle(t.Context(), lease, deliveries(got)))
				for _, r := range got {
					payloads, shard = append(payloads, string(r.Payload)), r.Shard
				}
				<-time.After(2 * time.Millisecond)
				return payloads, shard
			}
			late := begin(t, s, sql.LevelReadCommitted)
			require.NoError(t, s.Publisher(late).Publish("t", msg("x", "late")))
			require.NoError(t, publish(t.Context(), s, "u", msg("x", "early"))) // of another topic: the same shard, no lock in common
			got, shard := turn()
			require.Equal(t, []string{"early"}, got)
			for range 10 {
				got, _ := turn()
				require.Empty(t, got)
				require.Zero(t, mysql.Floor(reader, shard))
			}
			if commits {
				require.NoError(t, late.Commit())
				got, _ = turn()
				require.Equal(t, []string{"late"}, got)
			} else {
				require.NoError(t, late.Rollback())
			}
			require.Eventually(t, func() bool {
				got, _ := turn()
				return len(got) == 0 && mysql.Floor(reader, shard) > 0
			}, 20*time.Second, time.Millisecond)

			// Requeued rows lie below it.
			require.NoError(t, publish(t.Context(), s, "t", msg("x", "dead")))
			dead, err := reader.Read(t.Context(), lease, backends.Want{Limit: 100})
			require.NoError(t, err)
			require.NoError(t, reader.Settle(t.Context(), lease, []backends.Outcome{{Record: &dead[0], Action: backends.Park}}))
			require.Eventually(t, func() bool {
				require.NoError(t, publish(t.Context(), s, "u", msg("y", "more")))
				turn()
				return mysql.Floor(reader, shard) >= dead[0].ID
			}, 20*time.Second, time.Millisecond)
			_, err = s.Requeue(t.Context(), backends.DeadTarget{Aggregate: "x"})
			require.NoError(t, err)
			got, _ = turn()
			require.Contains(t, got, "dead")
		}
	})
}

// An old read view keeps every settled row in the table. Reading goes on at its
// pace: what a read costs in the end is near what it cost at the start.
func TestFloor_AnOldReadViewStopsNobody(t *testing.T) {
	total, step := 40_000, 10_000
	if testenv.Long() {
		total, step = 160_000, 20_000
	}
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{})
		view := begin(t, s, sql.LevelRepeatableRead)
		var n int
		require.NoError(t, view.QueryRowContext(t.Context(), "select count(*) from outbox where id > 0").Scan(&n))
		lease, err := s.Lease(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		reader := s.Reader()
		var scans []time.Duration
		for done := 0; done < total; done += step {
			fill(t, s, step)
			for left := step; left > 0; {
				got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 1000})
				require.NoError(t, err)
				require.NoError(t, reader.Settle(t.Context(), lease, deliveries(got)))
				left -= len(got)
			}
			scans = append(scans, idle(t, reader, lease))
		}
		t.Logf("an empty read after each %d settled rows: %v", step, scans)
		// From its start a read of so many dead rows takes tens of milliseconds more
		// with each step; the best of several, since the machine has other work.
		require.Less(t, scans[len(scans)-1], scans[0]+20*time.Millisecond)
		require.NoError(t, view.Rollback())
	})
}

// idle is what an empty read takes at best, once floors had the time to settle.
func idle(t *testing.T, reader backends.Reader, lease backends.Lease) time.Duration {
	t.Helper()
	best := time.Hour
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		began := time.Now()
		got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 1000})
		require.NoError(t, err)
		require.Empty(t, got)
		best = min(best, time.Since(began))
	}
	return best
}
