package kafka_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outmill/outmill/backends/brokers/kafka"
)

// BenchmarkPublish publishes batches of 1,000 records of 512 bytes, from one
// goroutine and from several. An op is one record.
func BenchmarkPublish(b *testing.B) {
	b.Run("fake", func(b *testing.B) {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(b, err)
		b.Cleanup(c.Close)
		publishers(b, c.ListenAddrs())
	})
	b.Run("kafka", func(b *testing.B) { publishers(b, seeds(b)) })
}

func publishers(b *testing.B, seeds []string) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := open(b, seeds, kafka.Config{})
			records := numbered(h.Topic(), 1000)
			for i := range records {
				records[i].Aggregate = fmt.Sprint("aggregate-", i%500)
				records[i].Payload = []byte(strings.Repeat("x", 512))
				records[i].Metadata = message.Metadata{"type": "order.placed", "traceparent": strings.Repeat("0", 55)}
				records[i].CreatedAt = time.Now()
			}
			require.NoError(b, h.broker.Publish(b.Context(), records))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range n {
				wg.Go(func() {
					for left := b.N/n + w; left > 0; left -= len(records) {
						if err := h.broker.Publish(b.Context(), records[:min(left, len(records))]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
