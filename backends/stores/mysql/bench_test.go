package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
)

// BenchmarkAppend is one message in one transaction.
func BenchmarkAppend(b *testing.B) {
	for name, variable := range engines {
		b.Run(name, func(b *testing.B) {
			s := open(b, database(b, variable, ""), mysql.Config{})
			i := 0
			for b.Loop() {
				require.NoError(b, publish(b.Context(), s, "t", msg(fmt.Sprint("agg", i%100), "payload")))
				i++
			}
		})
	}
}

// BenchmarkDrain reads and settles 20,000 records of 512 bytes, 1,000 at a time.
func BenchmarkDrain(b *testing.B) {
	const total = 20_000
	for name, variable := range engines {
		b.Run(name, func(b *testing.B) {
			s := open(b, database(b, variable, ""), mysql.Config{})
			for b.Loop() {
				b.StopTimer()
				fill(b, s, total)
				lease, err := s.Lease(b.Context(), "a", time.Hour)
				require.NoError(b, err)
				reader := s.Reader()
				b.StartTimer()
				for done := 0; done < total; {
					got, err := reader.Read(b.Context(), lease, backends.Want{Limit: 1000})
					require.NoError(b, err)
					require.NoError(b, reader.Settle(b.Context(), lease, deliveries(got)))
					done += len(got)
				}
			}
			b.ReportMetric(total*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkIdle is what a forwarder asks when nothing comes: hints, and now and
// then a read.
func BenchmarkIdle(b *testing.B) {
	for name, variable := range engines {
		s := open(b, database(b, variable, ""), mysql.Config{})
		lease, err := s.Lease(b.Context(), "a", time.Hour)
		require.NoError(b, err)
		watch, reader := s.Watch(), s.Reader()
		b.Run(name+"/hint", func(b *testing.B) {
			for b.Loop() {
				_, err := watch(b.Context())
				require.NoError(b, err)
			}
		})
		b.Run(name+"/read", func(b *testing.B) {
			for b.Loop() {
				_, err := reader.Read(b.Context(), lease, backends.Want{Limit: 1000})
				require.NoError(b, err)
			}
		})
	}
}

// fill appends records over 1,000 aggregates.
func fill(t testing.TB, s *mysql.Store, n int) {
	t.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint("agg", i%1000), string(make([]byte, 512)))
	}
	require.NoError(t, publish(t.Context(), s, "t", msgs...))
}

func deliveries(records []backends.Record) []backends.Outcome {
	out := make([]backends.Outcome, len(records))
	for i := range records {
		out[i] = backends.Outcome{Record: &records[i], Action: backends.Delivered}
	}
	return out
}
