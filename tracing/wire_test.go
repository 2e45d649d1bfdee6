package tracing_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/tracing"
)

// journey is a message with tracestate on its way through SQLite and a broker.
type journey struct {
	*testing.T
	store *sqlite.Store
	tel   *tracing.Telemetry
}

func newJourney(t *testing.T) *journey {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	require.NoError(t, store.Migrate(t.Context()))
	tel, err := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
	})
	require.NoError(t, err)
	return &journey{T: t, store: store, tel: tel}
}

// publish stores a message and returns its header as the row has it.
func (j *journey) publish(topic string) (id, row string) {
	j.Helper()
	tx, err := j.store.DB().BeginTx(j.Context(), nil)
	require.NoError(j, err)
	m := of("order-1", msg(watermill.NewUUID()))
	require.NoError(j, j.tel.Publisher(j.store.Publisher(tx)).Publish(topic, m))
	require.NoError(j, tx.Commit())
	require.NoError(j, j.store.DB().QueryRowContext(j.Context(),
		`select json_extract(metadata, '$.traceparent') from outbox where message_id = ?`, m.UUID).Scan(&row))
	require.Regexp(j, "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$", row)
	require.Equal(j, m.Metadata["traceparent"], row)
	return m.UUID, row
}

// forward runs a forwarder until the outbox is empty.
func (j *journey) forward(b backends.Broker) {
	j.Helper()
	f, err := forwarder.New(j.store, b, forwarder.Config{Hooks: j.tel.Forwarder()})
	require.NoError(j, err)
	ctx, stop := context.WithCancel(j.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	require.Eventually(j, func() bool { return left(j.T, j.store.DB()) == 0 }, 30*time.Second, 5*time.Millisecond)
	stop()
	require.NoError(j, <-done)
}

func left(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "select count(*) from outbox").Scan(&n))
	return n
}

// receive returns the message of an id.
func receive(t *testing.T, from <-chan *message.Message, id string) *message.Message {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case m := <-from:
			m.Ack()
			if m.UUID == id {
				return m
			}
		case <-deadline:
			require.Fail(t, "the message did not come")
		}
	}
}

func TestWire_PubSub(t *testing.T) {
	j := newJourney(t)
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	defer func() { require.NoError(t, channel.Close()) }()
	from, err := channel.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	broker, err := pubsub.New(channel, pubsub.Config{})
	require.NoError(t, err)
	id, row := j.publish("orders")
	j.forward(broker)
	require.Equal(t, row, receive(t, from, id).Metadata["traceparent"])
}

// On Kafka by each of the two ways that messages get there, as a client sees the
// record and as watermill-kafka's subscriber hands it over.
func TestWire_Kafka(t *testing.T) {
	seeds := strings.Split(kafkaServer(t), ",")
	native, err := kafka.New(kafka.Config{Brokers: seeds})
	require.NoError(t, err)
	defer func() { require.NoError(t, native.Close(context.WithoutCancel(t.Context()))) }()
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: seeds, Marshaler: wkafka.DefaultMarshaler{}}, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	watermills, err := pubsub.New(pub, pubsub.Config{})
	require.NoError(t, err)

	for name, broker := range map[string]backends.Broker{"franz-go": native, "watermill-kafka": watermills} {
		t.Run(name, func(t *testing.T) {
			j := newJourney(t)
			topic := kafkaTopic(t, seeds)
			id, row := j.publish(topic)
			j.forward(broker)

			var onWire []string
			for _, h := range kafkaRecord(t, seeds, topic).Headers {
				if strings.EqualFold(h.Key, "traceparent") {
					onWire = append(onWire, h.Key+"="+string(h.Value))
				}
			}
			require.Equal(t, []string{"traceparent=" + row}, onWire)

			sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
				Brokers: seeds, Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: topic,
				OverwriteSaramaConfig: fromTheStart(),
			}, watermill.NopLogger{})
			require.NoError(t, err)
			defer func() { require.NoError(t, sub.Close()) }()
			from, err := sub.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			require.Equal(t, row, receive(t, from, id).Metadata["traceparent"])
		})
	}
}

func kafkaTopic(t testing.TB, seeds []string) string {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	defer c.Close()
	admin := kadm.NewClient(c)
	topic := "t-" + strings.ToLower(watermill.NewShortUUID())
	_, err = admin.CreateTopic(t.Context(), 1, 1, nil, topic)
	require.NoError(t, err)
	t.Cleanup(func() { deleteTopic(t, seeds, topic) })
	require.Eventually(t, func() bool {
		offsets, err := admin.ListEndOffsets(t.Context(), topic)
		return err == nil && offsets.Error() == nil && len(offsets[topic]) == 1
	}, 30*time.Second, 5*time.Millisecond)
	return topic
}

func deleteTopic(t testing.TB, seeds []string, topic string) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	defer c.Close()
	_, err = kadm.NewClient(c).DeleteTopic(context.WithoutCancel(t.Context()), topic)
	require.NoError(t, err)
}

func kafkaRecord(t *testing.T, seeds []string, topic string) *kgo.Record {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	records := c.PollFetches(ctx).Records()
	require.Len(t, records, 1)
	return records[0]
}
