package rabbitmq_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

// BenchmarkPublish publishes batches of 1,000 records of 512 bytes in 500
// aggregates, by turns with this adapter and with watermill-amqp's publisher, with
// confirms: at its defaults (one message at a time, a new channel for each), and
// at its best settings (64 lanes, a channel kept for each). "x default" and "x
// best" say how many times as many messages a second this adapter publishes. An op
// is one turn.
func BenchmarkPublish(b *testing.B) {
	for kind, args := range map[string]amqp.Table{"classic": nil, "quorum": quorum} {
		b.Run(kind, func(b *testing.B) {
			h := open(b, server(b), rabbitmq.Config{})
			topic := h.queue(args)
			plain := watermillBroker(b, 1, 0)
			best := watermillBroker(b, 64, 64)
			records := numbered(topic, 1000)
			for i := range records {
				records[i].Aggregate = fmt.Sprint("aggregate-", i%500)
				records[i].Payload = []byte(strings.Repeat("x", 512))
				records[i].Metadata = message.Metadata{"type": "order.placed", "traceparent": strings.Repeat("0", 55)}
			}
			took := map[string]time.Duration{}
			turn := func(name string, broker backends.Broker, n int) {
				start := time.Now()
				require.NoError(b, broker.Publish(b.Context(), records[:n]))
				took[name] += time.Since(start) * time.Duration(len(records)/n)
				_, err := h.channel().QueuePurge(topic, false)
				require.NoError(b, err)
			}
			for _, broker := range []backends.Broker{h.broker, plain, best} { // connections and channels are made
				turn("", broker, 100)
			}
			ops := 0
			for b.Loop() {
				turn("ours", h.broker, 1000)
				turn("best", best, 1000)
				turn("plain", plain, 100)
				ops++
			}
			perSecond := func(name string) float64 { return float64(ops*len(records)) / took[name].Seconds() }
			b.ReportMetric(perSecond("ours"), "msg/s")
			b.ReportMetric(perSecond("ours")/perSecond("plain"), "x_default")
			b.ReportMetric(perSecond("ours")/perSecond("best"), "x_best")
		})
	}
}

func watermillBroker(b *testing.B, lanes, pool int) backends.Broker {
	b.Helper()
	cfg := wamqp.NewDurableQueueConfig(server(b))
	cfg.Publish.ConfirmDelivery = true
	cfg.Publish.ChannelPoolSize = pool
	pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
	require.NoError(b, err)
	broker, err := pubsub.New(pub, pubsub.Config{Lanes: lanes, ClosePublisher: true})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, broker.Close(context.WithoutCancel(b.Context()))) })
	return broker
}
