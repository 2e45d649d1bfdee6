package private

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// Compare publishes batches of 1,000 records of 512 bytes and 500 aggregates by
// two brokers in turn, and reports rate and CPU of this process for both with
// their ratios. An op is one record by each.
func Compare(b *testing.B, ours, theirs backends.Broker, topic string) {
	records := make([]backends.Record, 1000)
	id := int64(0)
	fresh := func(n int) []backends.Record { // what a broker drops as a repeat costs it less
		for i := range records[:n] {
			id++
			records[i] = backends.Record{
				Ref: backends.Ref{Shard: i % 64, ID: id}, MessageID: fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", id), Topic: topic,
				Aggregate: fmt.Sprint("aggregate-", i%500), Sequence: id/500 + 1, Payload: records[i].Payload,
				Metadata: records[i].Metadata, CreatedAt: time.Now(),
			}
		}
		return records[:n]
	}
	for i := range records {
		records[i].Payload = []byte(strings.Repeat("x", 512))
		records[i].Metadata = message.Metadata{"type": "order.placed", "traceparent": strings.Repeat("0", 55)}
	}
	for _, broker := range []backends.Broker{ours, theirs} {
		require.NoError(b, broker.Publish(b.Context(), fresh(1000)))
	}
	var wall, cpu [2]time.Duration
	b.ResetTimer()
	for left := b.N; left > 0; left -= len(records) {
		for i, broker := range []backends.Broker{ours, theirs} {
			batch := fresh(min(left, len(records)))
			start, used := time.Now(), processTime(b)
			require.NoError(b, broker.Publish(b.Context(), batch))
			wall[i] += time.Since(start)
			cpu[i] += processTime(b) - used
		}
	}
	n := float64(b.N)
	for i, name := range []string{"", "lanes-"} {
		b.ReportMetric(n/wall[i].Seconds(), name+"msg/s")
		b.ReportMetric(float64(cpu[i].Microseconds())/n, name+"cpu-µs/msg")
	}
	b.ReportMetric(float64(wall[1])/float64(wall[0]), "times-faster")
	b.ReportMetric(float64(cpu[0])/float64(cpu[1]), "of-lanes-cpu")
}

// processTime is the CPU time that this process has used.
func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
