package main

import (
	"context"
	"runtime"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

func drain(ctx context.Context, b *bench) error {
	null, err := b.repeat("Outmill, into nothing", "msg/s", func() (float64, error) {
		return b.drainOurs(ctx, nothing{}, false)
	})
	if err != nil {
		return err
	}
	direct, err := b.repeat("Outmill, franz-go, acks=all, idempotent", "msg/s", func() (float64, error) {
		broker, err := kafka.New(kafka.Config{Brokers: b.seeds})
		if err != nil {
			return 0, err
		}
		defer func() { _ = broker.Close(ctx) }()
		return b.drainOurs(ctx, broker, true)
	})
	if err != nil {
		return err
	}
	if b.options.incumbent == 0 {
		b.atLeast("into Kafka against into nothing", 100*direct.median()/null.median(), 70, "%")
		return nil
	}
	if _, err := b.repeat("Outmill, pubsub over watermill-kafka, 64 lanes", "msg/s", func() (float64, error) {
		return b.drainPubSub(ctx)
	}); err != nil {
		return err
	}
	plain, err := b.repeat("watermill-sql/v3, forwarder, watermill-kafka, defaults", "msg/s", func() (float64, error) {
		return b.drainIncumbent(ctx, incumbentDefaults())
	})
	if err != nil {
		return err
	}
	tuned, err := b.repeat("the same, batches of 1000", "msg/s", func() (float64, error) {
		return b.drainIncumbent(ctx, incumbentTuned())
	})
	if err != nil {
		return err
	}
	b.atLeast("into Kafka against the incumbent's defaults", direct.median()/plain.median(), 25, "×")
	b.atLeast("into Kafka against the incumbent tuned", direct.median()/tuned.median(), 15, "×")
	b.atLeast("into Kafka against into nothing", 100*direct.median()/null.median(), 70, "%")
	return nil
}

func (b *bench) drainOurs(ctx context.Context, broker backends.Broker, check bool) (float64, error) {
	s, drop, err := b.store(ctx, postgres.Config{})
	if err != nil {
		return 0, err
	}
	defer drop()
	topic, dropTopic, err := b.topic(ctx)
	if err != nil {
		return 0, err
	}
	defer dropTopic()
	if err := b.fill(ctx, s, topic, b.rows); err != nil {
		return 0, err
	}
	runtime.GC()
	rate, err := drainOnce(ctx, s, broker, b.rows, forwarder.Config{Workers: b.workers, Batch: b.batch})
	if err != nil || !check {
		return rate, err
	}
	return rate, b.readBack(ctx, topic, b.rows)
}

func (b *bench) drainPubSub(ctx context.Context) (float64, error) {
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers:   b.seeds,
		Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return backends.Aggregate(m), nil }),
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	broker, err := pubsub.New(pub, pubsub.Config{ClosePublisher: true})
	if err != nil {
		return 0, err
	}
	defer func() { _ = broker.Close(ctx) }()
	return b.drainOurs(ctx, broker, true)
}
