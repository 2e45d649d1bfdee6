package mysql_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
)

// The rights that docs/backends.md names are enough, and without them the error
// says where to look.
func TestGrants_AreEnough(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		admin, err := mysql.Open(t.Context(), dsn.FormatDSN(), mysql.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, admin.Close()) })
		exec := func(text string) {
			_, err := admin.DB().ExecContext(t.Context(), text)
			require.NoError(t, err, text)
		}
		as := func(rights map[string]string) *mysql.Store {
			user := "u" + strings.ToLower(rand.Text()[:12])
			exec(fmt.Sprintf("create user %s@'%%' identified by 'pw'", user))
			for table, right := range rights {
				exec(fmt.Sprintf("grant %s on %s.%s to %s@'%%'", right, dsn.DBName, table, user))
			}
			c := dsn.Clone()
			c.User, c.Passwd = user, "pw"
			s, err := mysql.Open(t.Context(), c.FormatDSN(), mysql.Config{Retention: time.Nanosecond})
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, s.Close())
				_, err := admin.DB().Exec("drop user " + user + "@'%'") //nolint:noctx // the test's context has ended
				require.NoError(t, err)
			})
			return s
		}
		const all = "select, insert, update, delete"
		require.NoError(t, as(map[string]string{"*": all + ", create, alter, index"}).Migrate(t.Context()))

		producer := as(map[string]string{"outbox": "insert", "outbox_sequences": "select, insert, update"})
		require.NoError(t, publish(t.Context(), producer, "t", msg("x", "1"), msg("y", "1"), msg("", "1")))
		require.NoError(t, publish(t.Context(), producer, "t", msg("x", "2")))
		require.ErrorContains(t, publish(t.Context(), as(map[string]string{"outbox_parked": "select"}), "t", msg("x", "3")), "lacks a right")

		s := as(map[string]string{
			"outbox": all, "outbox_forwarders": all, "outbox_shards": all, "outbox_parked": all, "outbox_dead": all,
			"outbox_archive": all, "outbox_state": all, "outbox_migrations": "select",
		})
		require.NoError(t, s.Check(t.Context()))
		lease, err := s.Lease(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		reader := s.Reader()
		mysql.UseFloors(reader, 0)
		got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 10})
		require.NoError(t, err)
		require.Len(t, got, 4)
		outcomes := deliveries(got)
		outcomes[0].Action, outcomes[0].Err = backends.Park, errors.New("planted")
		for i := range outcomes[1:] {
			if got[i+1].Aggregate == got[0].Aggregate {
				outcomes[i+1].Action = backends.Release
			}
		}
		require.NoError(t, reader.Settle(t.Context(), lease, outcomes))
		parked, err := s.Parked(t.Context(), "", 10)
		require.NoError(t, err)
		require.Len(t, parked, 1)
		_, err = s.Requeue(t.Context(), backends.DeadTarget{Aggregate: parked[0].Aggregate})
		require.NoError(t, err)
		_, err = s.Watch()(t.Context())
		require.NoError(t, err)
		_, err = s.Purge(t.Context(), 10)
		require.NoError(t, err)
		_, err = s.Backlog(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), lease))
	})
}
