package memory_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/backends/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type store struct{ *memory.Store }

func (s store) Outbox() backends.Outbox { return s.Store }

func (s store) Begin(context.Context) (storetest.Tx, error) { return tx{s.Store.Begin(), s.Store}, nil }

type tx struct {
	*memory.Tx
	store *memory.Store
}

func (t tx) Publisher() message.Publisher   { return t.store.Publisher(t.Tx) }
func (t tx) Commit(context.Context) error   { return t.Tx.Commit() }
func (t tx) Rollback(context.Context) error { return t.Tx.Rollback() }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Store {
		s, err := memory.New(memory.Config{})
		require.NoError(t, err)
		return store{s}
	})
}
