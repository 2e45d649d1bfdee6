package consumer_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/consumer"
)

// BenchmarkHandler is one insert in a transaction: bare, and in the inbox. Eight
// at once, as many aggregates as are needed for none to wait.
func BenchmarkHandler(b *testing.B) {
	pool, _, schema := pgSchema(b)
	store, err := postgres.New(pool, postgres.Config{Schema: schema})
	require.NoError(b, err)
	require.NoError(b, store.Migrate(b.Context()))
	insert := `insert into ` + schema + `.effects (label) values ($1)`

	var line atomic.Int64
	parallel := func(b *testing.B, do func(m *message.Message) error) {
		b.SetParallelism(4) // of two processors
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("line-", line.Add(1))
			for n := int64(1); pb.Next(); n++ {
				m := order(name, n)
				m.SetContext(b.Context())
				if err := do(m); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.Run("bare", func(b *testing.B) {
		parallel(b, func(m *message.Message) error {
			return pgx.BeginFunc(m.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(m.Context(), insert, m.UUID)
				return err
			})
		})
	})
	for _, cfg := range []consumer.Config{{Name: "marks"}, {Name: "no marks", NoMarks: true}, {Name: "off", Sequence: consumer.Off}} {
		b.Run(cfg.Name, func(b *testing.B) {
			cfg.Logger = slog.New(slog.DiscardHandler)
			c, err := consumer.New(store, cfg)
			require.NoError(b, err)
			h := c.Wrap(func(m *message.Message) ([]*message.Message, error) {
				tx, _ := postgres.TxFromContext(m.Context())
				_, err := tx.Exec(m.Context(), insert, m.UUID)
				return nil, err
			})
			parallel(b, func(m *message.Message) error {
				_, err := h(m)
				return err
			})
		})
	}
}
