package mysql_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
)

// catalogue lists every table and column of a database.
func catalogue(t *testing.T, s *mysql.Store) []string {
	t.Helper()
	rows, err := s.DB().QueryContext(t.Context(), `select concat_ws(' ', table_name, engine, create_time) from information_schema.tables where table_schema = database()
union all select concat_ws(' ', table_name, column_name, column_type, is_nullable, column_key, extra) from information_schema.columns where table_schema = database()
union all select concat_ws(' ', table_name, index_name, seq_in_index, column_name) from information_schema.statistics where table_schema = database() order by 1`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var out []string
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		out = append(out, line)
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, out)
	return out
}

// The longest prefix that is allowed, and three runs: the second and third change
// nothing, and the check is content.
func TestMigrate_AgainChangesNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		for _, prefix := range []string{strings.Repeat("p", 24), "select", ""} {
			s := open(t, dsn, mysql.Config{Prefix: prefix})
			first := catalogue(t, s)
			for range 2 {
				require.NoError(t, s.Migrate(t.Context()))
				require.NoError(t, s.Check(t.Context()))
			}
			require.Equal(t, first, catalogue(t, s))
			require.NoError(t, publish(t.Context(), s, "t", msg("x", "1")))
			require.Len(t, drainAll(t, s), 1)
		}
	})
}

// A migration that was cut off after a table or two is finished by the next.
func TestMigrate_GoesOnAfterACut(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{})
		whole := len(catalogue(t, s))
		for _, text := range []string{"drop table outbox_dead", "drop table outbox_state", "delete from outbox_shards where shard > 9", "delete from outbox_migrations where version_id > 0"} {
			_, err := s.DB().ExecContext(t.Context(), text)
			require.NoError(t, err)
		}
		require.NoError(t, s.Migrate(t.Context()))
		require.Len(t, catalogue(t, s), whole)
		lease, err := s.Lease(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.Len(t, lease.Shards, backends.Shards)
	})
}

// Programs that start at once, with as few connections as will do.
func TestMigrate_ManyAtOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		var wg sync.WaitGroup
		errs := make(chan error, 6)
		for range 6 {
			wg.Go(func() {
				s, err := mysql.Open(t.Context(), dsn.FormatDSN(), mysql.Config{})
				if err == nil {
					s.DB().SetMaxOpenConns(2)
					err = s.Migrate(t.Context())
				}
				errs <- err
				_ = s.Close()
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		s, err := mysql.Open(t.Context(), dsn.FormatDSN(), mysql.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		require.NoError(t, s.Check(t.Context()))
		s.DB().SetMaxOpenConns(1)
		require.ErrorContains(t, s.Migrate(t.Context()), "two are needed")
	})
}

// What is printed, run by the user's own tool, is what Migrate makes.
func TestMigrationSQL_IsWhatMigrateDoes(t *testing.T) {
	for name, variable := range engines {
		t.Run(name, func(t *testing.T) {
			migrated := open(t, database(t, variable, ""), mysql.Config{Prefix: "x_"})
			dsn := database(t, variable, "")
			dsn.MultiStatements = true // the user's tool
			s, err := mysql.Open(t.Context(), dsn.FormatDSN(), mysql.Config{Prefix: "x_"})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			text, err := s.MigrationSQL()
			require.NoError(t, err)
			_, err = s.DB().ExecContext(t.Context(), text)
			require.NoError(t, err)
			require.NoError(t, s.Check(t.Context()))
			require.NoError(t, s.Migrate(t.Context()))
			plain := func(s *mysql.Store) (out []string) {
				for _, line := range catalogue(t, s) {
					if !strings.Contains(line, " InnoDB ") { // made at another time
						out = append(out, line)
					}
				}
				return out
			}
			require.Equal(t, plain(migrated), plain(s))
		})
	}
}

func TestCheck_SaysWhatIsWrong(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{})
		for _, c := range []struct {
			spoil, mend, want string
			is                error
		}{
			{"update outbox_migrations set version_id = -1 where version_id = 1", "update outbox_migrations set version_id = 1 where version_id = -1", "run Migrate", backends.ErrSchema},
			{"insert into outbox_migrations (version_id, is_applied) values (99, true)", "delete from outbox_migrations where version_id = 99", "newer program", backends.ErrSchema},
			{"alter table outbox_archive engine = MyISAM", "alter table outbox_archive engine = InnoDB", "engine = InnoDB", nil},
			{"rename table outbox_migrations to gone", "rename table gone to outbox_migrations", "run Migrate", backends.ErrSchema},
		} {
			require.NoError(t, s.Check(t.Context()))
			_, err := s.DB().ExecContext(t.Context(), c.spoil)
			require.NoError(t, err)
			err = s.Check(t.Context())
			require.ErrorContains(t, err, c.want)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			_, err = s.DB().ExecContext(t.Context(), c.mend)
			require.NoError(t, err)
		}
		odd, err := mysql.New(s.DB(), mysql.Config{})
		require.NoError(t, err)
		odd.DB().SetMaxOpenConns(1)
		_, err = odd.DB().ExecContext(t.Context(), "set session autocommit = 0")
		require.NoError(t, err)
		require.ErrorContains(t, odd.Check(t.Context()), "autocommit")
	})
}

// Purging goes by age and in steps.
func TestPurge_RemovesWhatIsPastItsRetention(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{Retention: time.Hour})
		require.NoError(t, publish(t.Context(), s, "t", loose(30)...))
		drainAll(t, s)
		require.NoError(t, publish(t.Context(), s, "t", msg("x", "waits")))
		n, err := s.Purge(t.Context(), 100)
		require.NoError(t, err)
		require.Zero(t, n)
		_, err = s.DB().ExecContext(t.Context(), "update outbox_archive set delivered_at = delivered_at - interval 2 hour order by id limit 25")
		require.NoError(t, err)
		for _, want := range []int{10, 10, 5, 0} {
			n, err := s.Purge(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		require.Len(t, drainAll(t, s), 1)
	})
}
