package mysql_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/testenv"
)

type orderPlaced struct{ Order string }

func TestContextPublisher_ServesAnEventBus(t *testing.T) {
	s := open(t, database(t, testenv.MySQLDSN, ""), mysql.Config{})
	bus, err := cqrs.NewEventBusWithConfig(s.ContextPublisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "orders", nil },
		Marshaler:            cqrs.JSONMarshaler{},
		OnPublish: func(p cqrs.OnEventSendParams) error {
			backends.SetAggregate(p.Message, "order-"+p.Event.(orderPlaced).Order)
			return nil
		},
	})
	require.NoError(t, err)
	require.ErrorIs(t, bus.Publish(t.Context(), orderPlaced{"0"}), backends.ErrNoTransaction)
	tx := begin(t, s, sql.LevelDefault)
	got, ok := mysql.TxFromContext(mysql.WithTx(t.Context(), tx))
	require.True(t, ok)
	require.Equal(t, tx, got)
	require.NoError(t, bus.Publish(mysql.WithTx(t.Context(), tx), orderPlaced{"1"}))
	require.NoError(t, bus.Publish(s.WithTx(t.Context(), tx), orderPlaced{"1"}))
	require.NoError(t, tx.Commit())
	gone := begin(t, s, sql.LevelDefault)
	require.NoError(t, bus.Publish(mysql.WithTx(t.Context(), gone), orderPlaced{"1"}))
	require.NoError(t, gone.Rollback())
	last := drainAll(t, s)
	require.Equal(t, map[string]int64{"order-1": 2}, last)
}

// A transaction that is none, or another store's, is never used.
func TestContextPublisher_RefusesWhatIsNotItsTransaction(t *testing.T) {
	dsn := database(t, testenv.MySQLDSN, "")
	s, other := open(t, dsn, mysql.Config{}), open(t, dsn, mysql.Config{})
	conn, err := s.DB().Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	for name, ctx := range map[string]context.Context{
		"nothing":         t.Context(),
		"nil":             mysql.WithTx(t.Context(), nil),
		"a nil *sql.Tx":   mysql.WithTx(t.Context(), (*sql.Tx)(nil)),
		"another store's": other.WithTx(t.Context(), begin(t, s, sql.LevelDefault)),
		"a handle":        mysql.WithTx(t.Context(), s.DB()),
		"a connection":    mysql.WithTx(t.Context(), conn),
	} {
		m := msg("x", "1")
		m.SetContext(ctx)
		require.ErrorIs(t, s.ContextPublisher().Publish("t", m), backends.ErrNoTransaction, name)
		require.NoError(t, s.ContextPublisher().Publish("t"))
	}
	require.ErrorIs(t, s.Publisher(nil).Publish("t", msg("x", "1")), backends.ErrNoTransaction)
	require.Empty(t, drainAll(t, s))
}

// drainAll delivers what there is, and returns the last sequence of each aggregate.
func drainAll(t *testing.T, s *mysql.Store) map[string]int64 {
	t.Helper()
	done := make(chan struct{})
	close(done)
	return drainUntil(t, s, done)
}
