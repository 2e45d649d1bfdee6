package postgres_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

func TestContextPublisher_ServesAnEventBus(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	db := stdlib.OpenDBFromPool(p)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	bus, err := eventBus(s)
	require.NoError(t, err)
	require.ErrorIs(t, bus.Publish(t.Context(), OrderPlaced{"0"}), backends.ErrNoTransaction)
	require.NoError(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		got, ok := postgres.TxFromContext(postgres.WithTx(t.Context(), tx))
		require.True(t, ok)
		require.Equal(t, tx, got)
		return bus.Publish(postgres.WithTx(t.Context(), tx), OrderPlaced{"1"})
	}))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, bus.Publish(s.WithTx(t.Context(), tx), OrderPlaced{"1"}))
	got, ok := postgres.SQLTxFromContext(postgres.WithTx(t.Context(), tx))
	require.True(t, ok)
	require.Equal(t, tx, got)
	require.NoError(t, tx.Commit())
	gone := begin(t, p)
	require.NoError(t, bus.Publish(postgres.WithTx(t.Context(), gone), OrderPlaced{"1"}))
	require.NoError(t, gone.Rollback(t.Context()))
	rows := rowsOf(t, p, sch, "order-1")
	require.Len(t, rows, 2)
	require.JSONEq(t, `{"Order":"1"}`, rows[0].Payload)
	require.EqualValues(t, 2, *rows[1].Sequence)
}

// A transaction that is none, or another store's, is never used.
func TestContextPublisher_RefusesWhatIsNotItsTransaction(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	db := stdlib.OpenDBFromPool(p)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, other := open(t, p, postgres.Config{}), open(t, p, postgres.Config{})
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	cfg.ConnConfig.Database = "template1"
	elsewhere, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(elsewhere.Close)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	for name, ctx := range map[string]context.Context{
		"nothing":          t.Context(),
		"nil":              postgres.WithTx(t.Context(), nil),
		"nil pgx":          postgres.WithTx(t.Context(), pgx.Tx(nil)),
		"another store's":  other.WithTx(t.Context(), begin(t, p)),
		"another database": postgres.WithTx(t.Context(), begin(t, elsewhere)),
		"a pool":           postgres.WithTx(t.Context(), p),
		"a handle":         postgres.WithTx(t.Context(), db),
		"a connection":     postgres.WithTx(t.Context(), conn),
	} {
		t.Run(name, func(t *testing.T) {
			m := msg("x", "1")
			m.SetContext(ctx)
			require.ErrorIs(t, s.ContextPublisher().Publish("t", m), backends.ErrNoTransaction)
			require.NoError(t, s.ContextPublisher().Publish("t"))
		})
	}
	for name, pub := range map[string]message.Publisher{
		"nil pgx": s.Publisher(nil), "nil sql": s.SQLPublisher(nil), "a handle": s.SQLPublisher(db), "a connection": s.SQLPublisher(conn),
		"a nil *sql.Tx": s.SQLPublisher((*sql.Tx)(nil)),
	} {
		require.ErrorIs(t, pub.Publish("t", msg("x", "1")), backends.ErrNoTransaction, name)
	}
	b, err := s.Backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Ready)
}
