package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) {
	// watermill-kafka's metrics library runs a meter for as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// harness reads back by watermill-kafka's own unmarshaler.
type harness struct {
	t      testing.TB
	seeds  []string
	broker backends.Broker
	admin  *kadm.Client
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string {
	topic := "t-" + strings.ToLower(watermill.NewShortUUID())
	h.create(topic, 4, nil)
	return topic
}

// create makes a topic and waits until the brokers host it.
func (h *harness) create(topic string, partitions int32, settings map[string]*string) {
	_, err := h.admin.CreateTopic(h.t.Context(), partitions, 1, settings, topic)
	require.NoError(h.t, err)
	require.Eventually(h.t, func() bool {
		offsets, err := h.admin.ListEndOffsets(h.t.Context(), topic)
		return err == nil && offsets.Error() == nil && len(offsets[topic]) == int(partitions)
	}, 30*time.Second, time.Millisecond)
}

func (h *harness) MissingTopic() string {
	return "missing-" + strings.ToLower(watermill.NewShortUUID())
}

// Refused is too large for the topic, not for the client.
func (h *harness) Refused(r backends.Record) backends.Record {
	r.Payload = make([]byte, 1_200_000)
	return r
}

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(h.seeds...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var out []brokertest.Message
	for len(out) < n {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d came: %w", len(out), n, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			m := brokertest.Message{Payload: r.Value, Headers: map[string]string{}}
			for _, x := range r.Headers {
				if x.Key == wkafka.UUIDHeaderKey {
					m.ID = string(x.Value)
				} else {
					m.Headers[x.Key] = string(x.Value)
				}
			}
			require.Equal(h.t, m.Headers[backends.AggregateKey], string(r.Key))
			out = append(out, m)
		})
	}
	return out, nil
}

func open(t testing.TB, seeds []string, cfg kafka.Config) *harness {
	t.Helper()
	cfg.Brokers = seeds
	b, err := kafka.New(cfg)
	require.NoError(t, err)
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	h := &harness{t: t, seeds: seeds, broker: b, admin: kadm.NewClient(c)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
		c.Close()
	})
	return h
}

func seeds(t testing.TB) []string { return strings.Split(testenv.Server(t, testenv.KafkaBrokers), ",") }

// MaxMessageBytes above the topic's limit: the cluster refuses whole batches.
func TestBroker_Kafka(t *testing.T) {
	s := seeds(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		return open(t, s, kafka.Config{MaxMessageBytes: 8 << 20})
	})
}

// With the default limit, the adapter refuses before anything is sent.
func TestBroker_KafkaLocalLimit(t *testing.T) {
	s := seeds(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t, s, kafka.Config{}) })
}

func TestBroker_Fake(t *testing.T) {
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return open(t, c.ListenAddrs(), kafka.Config{})
	})
}

// harness of watermill-kafka's publisher through pubsub. What it cannot be made
// to do is taken out.
type watermillHarness struct{ h *harness }

func (w watermillHarness) Broker() backends.Broker { return w.h.broker }
func (w watermillHarness) Topic() string           { return w.h.Topic() }
func (w watermillHarness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	return w.h.Read(ctx, topic, n)
}

func TestBroker_WatermillKafkaPublisher(t *testing.T) {
	s := seeds(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		h := open(t, s, kafka.Config{})
		cfg := wkafka.DefaultSaramaSyncPublisherConfig()
		pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
			Brokers: s, OverwriteSaramaConfig: cfg,
			Marshaler: wkafka.NewWithPartitioningMarshaler(partitionKey),
		}, watermill.NopLogger{})
		require.NoError(t, err)
		b, err := pubsub.New(pub, pubsub.Config{ClosePublisher: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
		h.broker = b
		return watermillHarness{h}
	})
}

func partitionKey(_ string, m *message.Message) (string, error) { return backends.Aggregate(m), nil }

// Watermill's own subscriber reads what the adapter wrote.
func TestWire_WatermillSubscriberReadsIt(t *testing.T) {
	s := seeds(t)
	h := open(t, s, kafka.Config{})
	topic := h.Topic()
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: s, Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: topic, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Close()) }()
	in, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)

	var records []backends.Record
	for i := range 100 {
		r := backends.Record{
			MessageID: watermill.NewUUID(), Topic: topic, Aggregate: "order-1", Sequence: int64(i + 1),
			Payload: []byte{0xff, byte(i)}, Metadata: message.Metadata{"type": "placed"}, CreatedAt: time.Now(),
		}
		records = append(records, r)
	}
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
			m.Ack()
		case <-time.After(30 * time.Second):
			t.Fatalf("message %d did not come", i)
		}
	}
}
