package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// A forgotten transaction shows in the horizon's age, and the table has a size.
func TestMeasure_AnOldTransactionIsSeen(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	s := open(t, p, postgres.Config{})
	tx, err := p.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "select 1 from pg_class limit 1") // takes its snapshot
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m, err := s.Measure(t.Context())
		require.NoError(t, err)
		require.Positive(t, m.TableBytes)
		return m.HorizonAge > 100*time.Millisecond
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
}
