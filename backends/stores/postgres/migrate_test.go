package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// catalogue lists every object of a schema with its place in the catalogue, so
// that one made anew shows.
func catalogue(t *testing.T, p *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := p.Query(t.Context(), `select c.oid || ' ' || c.relname || ' ' || c.relkind::text || c.relpersistence::text || coalesce(array_to_string(c.reloptions, ','), '')
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1
union all select 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(collation_name, '') || coalesce(column_default, '')
from information_schema.columns where table_schema = $1 order by 1`, schema)
	require.NoError(t, err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return out
}

// The longest prefix that is allowed, a schema whose name is a word of SQL, and
// three runs: the second and third change nothing, and the check is content.
func TestMigrate_AgainChangesNothing(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	for name, cfg := range map[string]postgres.Config{
		"longest prefix": {Schema: schema(t, p), Prefix: strings.Repeat("p", 24)},
		"reserved words": {Schema: "select", Prefix: "table"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() {
				_, err := p.Exec(context.WithoutCancel(t.Context()), "drop schema if exists "+pgx.Identifier{cfg.Schema}.Sanitize()+" cascade")
				require.NoError(t, err)
			})
			s, err := postgres.New(p, cfg)
			require.NoError(t, err)
			require.NoError(t, s.Migrate(t.Context()))
			first := catalogue(t, p, cfg.Schema)
			require.NotEmpty(t, first)
			for range 2 {
				require.NoError(t, s.Migrate(t.Context()))
				require.NoError(t, s.Check(t.Context()))
			}
			require.Equal(t, first, catalogue(t, p, cfg.Schema))
			publishOne(t, p, s, "x")
			drain(t, s, 1, 10)
		})
	}
}

// Programs that start at once, more of them than there are connections.
func TestMigrate_ManyAtOnce(t *testing.T) {
	admin := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	for name, variable := range map[string]string{"direct": testenv.PostgresURL, "pooler": testenv.PgBouncerURL} {
		t.Run(name, func(t *testing.T) {
			cfg, err := pgxpool.ParseConfig(testenv.Server(t, variable))
			require.NoError(t, err)
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			cfg.MaxConns = 2
			sch := schema(t, admin)
			var wg sync.WaitGroup
			errs := make(chan error, 8)
			for range 8 {
				wg.Go(func() {
					p, err := pgxpool.NewWithConfig(t.Context(), cfg)
					if err != nil {
						errs <- err
						return
					}
					defer p.Close()
					s, err := postgres.New(p, postgres.Config{Schema: sch, Pooler: true})
					if err == nil {
						err = s.Migrate(t.Context())
					}
					errs <- err
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
		})
	}
}

func TestMigrate_NeedsTwoConnections(t *testing.T) {
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	cfg.MaxConns = 1
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	s, err := postgres.New(p, postgres.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, s.Migrate(t.Context()), "two are needed")
}

// What is printed, run by the user's own tool, is what Migrate makes.
func TestMigrationSQL_IsWhatMigrateDoes(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	migrated, printed := schema(t, p), schema(t, p)
	open(t, p, postgres.Config{Schema: migrated})
	s, err := postgres.New(p, postgres.Config{Schema: printed})
	require.NoError(t, err)
	text, err := s.MigrationSQL()
	require.NoError(t, err)
	_, err = p.Exec(t.Context(), "create schema "+printed+"; "+text)
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	require.NoError(t, s.Migrate(t.Context()))
	plain := func(schema string) []string {
		out := catalogue(t, p, schema)
		for i, line := range out {
			if !strings.HasPrefix(line, "column ") {
				_, out[i], _ = strings.Cut(line, " ") // without its place
			}
		}
		require.NotEmpty(t, out)
		return out
	}
	require.ElementsMatch(t, plain(migrated), plain(printed))
	publishOne(t, p, s, "x")
	drain(t, s, 1, 10)
}

func TestCheck_SaysWhatIsWrong(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	for name, c := range map[string]struct {
		spoil, want string
		is          error
	}{
		"no tables":      {"drop table outbox_migrations", "run Migrate", backends.ErrSchema},
		"older version":  {"update outbox_migrations set version_id = 0", "run Migrate", backends.ErrSchema},
		"newer version":  {"insert into outbox_migrations (version_id, is_applied) values (99, true)", "newer program", backends.ErrSchema},
		"identity cache": {"alter table outbox alter column id set cache 10", "set cache 1", nil},
		"logged token":   {"alter table outbox_incarnation set logged", "set unlogged", nil},
		"no token":       {"drop table outbox_incarnation", "run Migrate", backends.ErrSchema},
	} {
		t.Run(name, func(t *testing.T) {
			sch := schema(t, p)
			s := open(t, p, postgres.Config{Schema: sch})
			require.NoError(t, s.Check(t.Context()))
			_, err := p.Exec(t.Context(), "set search_path to "+sch+"; "+c.spoil+"; reset search_path")
			require.NoError(t, err)
			err = s.Check(t.Context())
			require.ErrorContains(t, err, c.want)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
}

// A newer database is left alone.
func TestMigrate_RefusesNewerTables(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	_, err := p.Exec(t.Context(), "insert into "+sch+".outbox_migrations (version_id, is_applied) values (99, true)")
	require.NoError(t, err)
	require.ErrorContains(t, s.Migrate(t.Context()), "newer program")
}

// Purging goes by age, in steps, and looks at no more than it removes.
func TestPurge_RemovesWhatIsPastItsRetention(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch, Retention: time.Hour})
	publishMany(t, p, s, 30, 3)
	drain(t, s, 30, 10)
	publishOne(t, p, s, "waits")
	n, err := s.Purge(t.Context(), 100)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = p.Exec(t.Context(), "update "+sch+".outbox_archive set delivered_at = delivered_at - interval '2 hours' where id <= 25")
	require.NoError(t, err)
	for _, want := range []int{10, 10, 5, 0} {
		n, err := s.Purge(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	var kept, waiting int
	require.NoError(t, p.QueryRow(t.Context(), "select (select count(*) from "+sch+".outbox_archive), (select count(*) from "+sch+".outbox)").Scan(&kept, &waiting))
	require.Equal(t, 5, kept)
	require.Equal(t, 1, waiting)
}
