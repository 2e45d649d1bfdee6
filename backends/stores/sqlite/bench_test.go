package sqlite_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// BenchmarkAppend is one message in one transaction, on disk before the next.
func BenchmarkAppend(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "x.db"), sqlite.Config{})
	i := 0
	for b.Loop() {
		require.NoError(b, appendOne(b.Context(), s, fmt.Sprint("agg", i%100), "payload"))
		i++
	}
}

// BenchmarkDrain reads and settles 20,000 records of 512 bytes, 1,000 at a time.
func BenchmarkDrain(b *testing.B) {
	const total = 20_000
	for b.Loop() {
		b.StopTimer()
		s := open(b, filepath.Join(b.TempDir(), "x.db"), sqlite.Config{})
		fill(b, s, total)
		lease, err := s.Lease(b.Context(), "a", time.Hour)
		require.NoError(b, err)
		reader := s.Reader()
		b.StartTimer()
		for done := 0; done < total; {
			got, err := reader.Read(b.Context(), lease, backends.Want{Limit: 1000})
			require.NoError(b, err)
			outcomes := make([]backends.Outcome, len(got))
			for i := range got {
				outcomes[i] = backends.Outcome{Record: &got[i], Action: backends.Delivered}
			}
			require.NoError(b, reader.Settle(b.Context(), lease, outcomes))
			done += len(got)
		}
	}
	b.ReportMetric(total*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func fill(b *testing.B, s *sqlite.Store, n int) {
	tx, err := s.DB().BeginTx(b.Context(), nil)
	require.NoError(b, err)
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint("agg", i%1000), string(make([]byte, 512)))
	}
	require.NoError(b, s.Publisher(tx).Publish("t", msgs...))
	require.NoError(b, tx.Commit())
}
