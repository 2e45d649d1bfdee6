package postgres_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/backends/storetest"
	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool connects to the test server.
func pool(t testing.TB, variable string, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, variable))
	require.NoError(t, err)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.MaxConns = 20
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// schema makes a name and drops the schema of that name in the end.
func schema(t testing.TB, p *pgxpool.Pool) string {
	t.Helper()
	name := "t_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		_, err := p.Exec(context.WithoutCancel(t.Context()), "drop schema if exists "+name+" cascade")
		require.NoError(t, err)
	})
	return name
}

// open makes a store in a schema of its own.
func open(t testing.TB, p *pgxpool.Pool, cfg postgres.Config) *postgres.Store {
	t.Helper()
	if cfg.Schema == "" {
		cfg.Schema = schema(t, p)
	}
	s, err := postgres.New(p, cfg)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	return s
}

type pgxStore struct {
	*postgres.Store
	pool *pgxpool.Pool
}

func (s pgxStore) Outbox() backends.Outbox { return s.Store }

func (s pgxStore) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := s.pool.Begin(ctx)
	return pgxTx{tx, s.Store}, err
}

type pgxTx struct {
	pgx.Tx
	store *postgres.Store
}

func (t pgxTx) Publisher() message.Publisher { return t.store.Publisher(t.Tx) }

type sqlStore struct {
	*postgres.Store
	db *sql.DB
}

func (s sqlStore) Outbox() backends.Outbox { return s.Store }

func (s sqlStore) Begin(ctx context.Context) (storetest.Tx, error) {
	// A transaction of database/sql ends with its context.
	tx, err := s.db.BeginTx(context.WithoutCancel(ctx), nil)
	return sqlTx{tx, s.Store}, err
}

type sqlTx struct {
	*sql.Tx
	store *postgres.Store
}

func (t sqlTx) Publisher() message.Publisher   { return t.store.SQLPublisher(t.Tx) }
func (t sqlTx) Commit(context.Context) error   { return t.Tx.Commit() }
func (t sqlTx) Rollback(context.Context) error { return t.Tx.Rollback() }

func TestStore_PGX(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	storetest.Run(t, func(t testing.TB) storetest.Store { return pgxStore{open(t, p, postgres.Config{}), p} })
}

func TestStore_SQL(t *testing.T) {
	admin := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	db := stdlib.OpenDB(*admin.Config().ConnConfig)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	storetest.Run(t, func(t testing.TB) storetest.Store {
		s, err := postgres.NewSQL(db, postgres.Config{Schema: schema(t, admin), Prefix: "shop_"})
		require.NoError(t, err)
		require.NoError(t, s.Migrate(t.Context()))
		return sqlStore{s, db}
	})
}

func TestStore_Archive(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeDescribeExec)
	storetest.Run(t, func(t testing.TB) storetest.Store {
		return pgxStore{open(t, p, postgres.Config{Retention: 1}), p}
	})
}

func TestStore_SimpleProtocol(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeSimpleProtocol)
	storetest.Run(t, func(t testing.TB) storetest.Store { return pgxStore{open(t, p, postgres.Config{Pooler: true}), p} })
}

// The pooler hands each transaction to another session.
func TestStore_Pooler(t *testing.T) {
	p := pool(t, testenv.PgBouncerURL, pgx.QueryExecModeExec)
	admin := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	storetest.Run(t, func(t testing.TB) storetest.Store {
		return pgxStore{open(t, p, postgres.Config{Schema: schema(t, admin), Pooler: true}), p}
	})
}

func TestStore_PoolerSQL(t *testing.T) {
	admin := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	through := pool(t, testenv.PgBouncerURL, pgx.QueryExecModeExec)
	db := stdlib.OpenDB(*through.Config().ConnConfig)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	storetest.Run(t, func(t testing.TB) storetest.Store {
		s, err := postgres.NewSQL(db, postgres.Config{Schema: schema(t, admin), Pooler: true})
		require.NoError(t, err)
		require.NoError(t, s.Migrate(t.Context()))
		return sqlStore{s, db}
	})
}
