package matrix

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/internal/testenv"
)

// broker is a topic of the test's own and Watermill's subscriber of it.
type broker struct {
	url, topic string
	subscriber message.Subscriber
}

var brokers = []struct {
	name string
	open func(t *testing.T, topic string) broker
}{
	{"Kafka", openKafka},
	{"RabbitMQ", openRabbitMQ},
	{"NATS", openNATS},
	{"Redis", openRedis},
}

var quiet = watermill.NopLogger{}

func openKafka(t *testing.T, topic string) broker {
	seeds := testenv.Server(t, testenv.KafkaBrokers)
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(seeds, ",")...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	admin := kadm.NewClient(c)
	_, err = admin.CreateTopic(t.Context(), 4, 1, nil, topic)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.DeleteTopic(context.WithoutCancel(t.Context()), topic)
		require.NoError(t, err)
	})
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: strings.Split(seeds, ","), Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: topic, OverwriteSaramaConfig: cfg,
	}, quiet)
	require.NoError(t, err)
	return broker{"kafka://" + seeds, topic, sub}
}

func openRabbitMQ(t *testing.T, topic string) broker {
	url := testenv.Server(t, testenv.RabbitMQURL)
	cfg := wamqp.NewDurableQueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 1 // more than one are handled side by side
	sub, err := wamqp.NewSubscriber(cfg, quiet)
	require.NoError(t, err)
	return broker{url + "?declare=true", topic, sub}
}

func openNATS(t *testing.T, topic string) broker {
	url := testenv.Server(t, testenv.NATSURL)
	conn, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, js.DeleteStream(context.WithoutCancel(t.Context()), topic)) })
	sub, err := wjetstream.NewSubscriber(wjetstream.SubscriberConfig{URL: url, Logger: quiet, AckWaitTimeout: time.Minute})
	require.NoError(t, err)
	return broker{url, topic, sub}
}

func openRedis(t *testing.T, topic string) broker {
	url := testenv.Server(t, testenv.RedisURL)
	options, err := goredis.ParseURL(url)
	require.NoError(t, err)
	sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: goredis.NewClient(options), ConsumerGroup: topic, OldestId: "0", DisableIndefiniteInitialBlock: true,
	}, quiet)
	require.NoError(t, err)
	c := goredis.NewClient(options)
	t.Cleanup(func() {
		require.NoError(t, c.Del(context.WithoutCancel(t.Context()), topic).Err())
		require.NoError(t, c.Close())
	})
	return broker{url, topic, sub}
}
