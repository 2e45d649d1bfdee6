package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/backends/storetest"
)

func TestMain(m *testing.M) {
	if part := os.Getenv(childPart); part != "" {
		os.Exit(child(part, os.Getenv(childPath)))
	}
	goleak.VerifyTestMain(m)
}

type store struct{ *sqlite.Store }

func (s store) Outbox() backends.Outbox { return s.Store }

func (s store) Begin(ctx context.Context) (storetest.Tx, error) {
	conn, err := s.DB().Conn(ctx) // waiting for the one connection ends with ctx
	if err != nil {
		return nil, err
	}
	t, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	return tx{t, conn, s.Store}, err
}

type tx struct {
	*sql.Tx
	conn  *sql.Conn
	store *sqlite.Store
}

func (t tx) Publisher() message.Publisher { return t.store.Publisher(t.Tx) }

func (t tx) Commit(context.Context) error {
	defer func() { _ = t.conn.Close() }()
	return t.Tx.Commit()
}

func (t tx) Rollback(context.Context) error {
	defer func() { _ = t.conn.Close() }()
	return t.Tx.Rollback()
}

func open(t testing.TB, path string, cfg sqlite.Config) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context()))
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Store {
		return store{open(t, filepath.Join(t.TempDir(), "box ?#%.db"), sqlite.Config{})}
	})
}

func TestStore_Archive(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Store {
		return store{open(t, filepath.Join(t.TempDir(), "box.db"), sqlite.Config{Prefix: "shop_", Retention: 1})}
	})
}
