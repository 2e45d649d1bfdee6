package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

var _ wamqp.Marshaler = rabbitmq.TolerantMarshaler{}

func numbered(topic string, n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			MessageID: watermill.NewUUID(), Topic: topic, Aggregate: "order-1", Sequence: int64(i + 1),
			Payload: []byte{0xff, byte(i)}, Metadata: message.Metadata{"type": "placed"}, CreatedAt: time.Now(),
		}
	}
	return out
}

// Watermill's own subscriber reads what the adapter wrote, in each of the named
// configurations: what the subscriber declared is what the adapter sends to.
func TestWire_WatermillSubscriberReadsIt(t *testing.T) {
	url := server(t)
	exchange := name("topics")
	for kind, c := range map[string]struct {
		watermill func(topic string) wamqp.Config
		topology  rabbitmq.Topology
	}{
		"durable queue": {
			func(string) wamqp.Config { return wamqp.NewDurableQueueConfig(url) },
			rabbitmq.DurableQueue(),
		},
		"durable pubsub": {
			func(string) wamqp.Config {
				return wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("billing"))
			},
			rabbitmq.DurablePubSub(),
		},
		"durable topic": {
			func(topic string) wamqp.Config { return wamqp.NewDurableTopicConfig(url, exchange, topic+"-queue") },
			rabbitmq.DurableTopic(exchange),
		},
		"a configuration's own functions": {
			func(string) wamqp.Config { return wamqp.NewDurableQueueConfig(url) },
			rabbitmq.Topology{
				Exchange:   wamqp.NewDurableQueueConfig(url).Exchange.GenerateName,
				RoutingKey: wamqp.NewDurableQueueConfig(url).Publish.GenerateRoutingKey,
			},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			topic := name("wire")
			h := open(t, url, rabbitmq.Config{Topology: c.topology})
			cfg := c.watermill(topic)
			t.Cleanup(func() {
				h.remove(cfg.Queue.GenerateName(topic))
				if x := cfg.Exchange.GenerateName(topic); x != "" {
					require.NoError(t, h.channel().ExchangeDelete(x, false, false))
				}
			})
			sub, err := wamqp.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			defer func() { require.NoError(t, sub.Close()) }()
			in, err := sub.Subscribe(t.Context(), topic)
			require.NoError(t, err)

			records := numbered(topic, 100)
			require.NoError(t, h.broker.Publish(t.Context(), records))
			for i := range records {
				select {
				case m := <-in:
					require.Equal(t, records[i].MessageID, m.UUID)
					require.Equal(t, records[i].Payload, []byte(m.Payload))
					require.Equal(t, "placed", m.Metadata.Get("type"))
					require.Equal(t, "order-1", backends.Aggregate(m))
					n, ok := backends.Sequence(m)
					require.True(t, ok)
					require.EqualValues(t, i+1, n)
					require.Equal(t, topic, m.Metadata.Get(backends.TopicKey))
					require.Len(t, m.Metadata, 5)
					m.Ack()
				case <-time.After(30 * time.Second):
					t.Fatalf("message %d did not come", i)
				}
			}
		})
	}
}

// What is sent is persistent, and carries the id as a property too.
func TestWire_PersistentWithAnID(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{})
	topic := h.Topic()
	records := numbered(topic, 1)
	require.NoError(t, h.broker.Publish(t.Context(), records))
	d, ok, err := h.channel().Get(topic, true)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, amqp.Persistent, d.DeliveryMode)
	require.Equal(t, records[0].MessageID, d.MessageId)
}

// A quorum queue counts deliveries in a header that is a number.
func TestTolerantMarshaler_ReadsWhatServersAdd(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{})
	topic := h.queue(quorum)
	records := numbered(topic, 1)
	require.NoError(t, h.broker.Publish(t.Context(), records))
	ch := h.channel()
	var d amqp.Delivery
	for range 2 { // nacked once
		require.Eventually(t, func() (ok bool) {
			var err error
			d, ok, err = ch.Get(topic, false)
			require.NoError(t, err)
			return ok
		}, 10*time.Second, 5*time.Millisecond)
		require.NoError(t, d.Nack(false, true))
	}
	_, err := wamqp.DefaultMarshaler{}.Unmarshal(d)
	require.Error(t, err, "then the tolerant one is not needed")
	m, err := rabbitmq.TolerantMarshaler{}.Unmarshal(d)
	require.NoError(t, err)
	require.Equal(t, records[0].MessageID, m.UUID)
	require.Equal(t, "placed", m.Metadata.Get("type"))
	require.Equal(t, "1", m.Metadata.Get("x-delivery-count"))

	sent, err := rabbitmq.TolerantMarshaler{}.Marshal(m)
	require.NoError(t, err)
	back, err := wamqp.DefaultMarshaler{}.Unmarshal(amqp.Delivery{Headers: sent.Headers, Body: sent.Body})
	require.NoError(t, err)
	require.True(t, m.Equals(back))
	m, err = rabbitmq.TolerantMarshaler{}.Unmarshal(amqp.Delivery{Headers: amqp.Table{"x-death": []any{}, "n": int64(7), "b": true}})
	require.NoError(t, err)
	require.Equal(t, message.Metadata{"n": "7", "b": "true"}, m.Metadata)
}
