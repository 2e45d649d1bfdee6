package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// drain forwards a backlog. Each run has fresh tables and a fresh topic, and its
// time runs from the forwarder's start, connections included, to the last word.
func drain(ctx context.Context, b *bench) error {
	var bare, w work
	null, err := b.repeat(ctx, "Outmill, into nothing", "msg/s", func(ctx context.Context) (float64, error) {
		return b.drainOurs(ctx, nothing{}, false, &bare)
	})
	if err != nil {
		return err
	}
	b.showWork(&bare)
	direct, err := b.repeat(ctx, "Outmill into Kafka: franz-go, idempotent, acks=all", "msg/s", func(ctx context.Context) (float64, error) {
		broker, err := kafka.New(kafka.Config{Brokers: b.seeds})
		if err != nil {
			return 0, err
		}
		defer func() { _ = broker.Close(ctx) }()
		return b.drainOurs(ctx, broker, true, &w)
	})
	if err != nil {
		return err
	}
	b.showWork(&w)
	if _, err := b.repeat(ctx, "Outmill into Kafka: pubsub over watermill-kafka, acks=all", "msg/s", b.drainPubSub); err != nil {
		return err
	}
	b.atLeast("into Kafka against into nothing", 100*direct.median()/null.median(), 70, "%")
	if b.incumbentRows == 0 {
		return nil
	}
	plain, err := b.repeat(ctx, "incumbent, defaults", "msg/s", func(ctx context.Context) (float64, error) {
		return b.drainIncumbent(ctx, incumbentDefaults())
	})
	if err != nil {
		return err
	}
	tuned, err := b.repeat(ctx, "incumbent, tuned: "+tunedText, "msg/s", func(ctx context.Context) (float64, error) {
		return b.drainIncumbent(ctx, incumbentTuned())
	})
	if err != nil {
		return err
	}
	b.atLeast("into Kafka against the incumbent's defaults", direct.median()/plain.median(), 25, "×")
	b.atLeast("into Kafka against the incumbent tuned", direct.median()/tuned.median(), 15, "×")
	b.printf("every topic was read back: nothing missing, nothing invented, in order; repeats: %d\n", b.repeats)
	return nil
}

func (b *bench) drainOurs(ctx context.Context, broker backends.Broker, check bool, w *work) (float64, error) {
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
	runtime.GC() // the garbage is of filling
	before, err := b.sessions(ctx, b.name)
	if err != nil {
		return 0, err
	}
	client := cpuOf(os.Getpid())
	rate, err := drainOnce(ctx, s, broker, b.rows, forwarder.Config{Workers: b.workers, Batch: b.batch}, w)
	if err != nil {
		return 0, err
	}
	w.client += cpuOf(os.Getpid()) - client
	after, err := b.sessions(ctx, b.name)
	w.server += grown(before, after)
	w.records += b.rows
	if err != nil || !check {
		return rate, err
	}
	return rate, b.checkTopic(ctx, topic, b.rows)
}

// showWork tells what a thousand records cost.
func (b *bench) showWork(w *work) {
	thousands := float64(w.records) / 1000
	b.note("  a worker's time for a thousand: reading", milliseconds(time.Duration(w.read.Load()))/thousands, "ms", "")
	b.note("  publishing", milliseconds(time.Duration(w.publish.Load()))/thousands, "ms", "")
	b.note("  CPU time of a thousand: client", 1000*w.client/thousands, "ms", "")
	b.note("  its sessions in the database", 1000*w.server/thousands, "ms", "")
}

// checkTopic reads a topic back and counts what came more than once.
func (b *bench) checkTopic(ctx context.Context, topic string, n int) error {
	repeats, err := b.readBack(ctx, topic, n)
	b.repeats += repeats
	return err
}

func (b *bench) drainPubSub(ctx context.Context) (float64, error) {
	pub, err := b.watermillKafka(sarama.WaitForAll)
	if err != nil {
		return 0, err
	}
	broker, err := pubsub.New(pub, pubsub.Config{ClosePublisher: true})
	if err != nil {
		return 0, err
	}
	defer func() { _ = broker.Close(ctx) }()
	return b.drainOurs(ctx, broker, true, &work{})
}

// watermillKafka is Watermill's publisher with its defaults, save that it keys
// by aggregate, without which nobody's order would be kept.
func (b *bench) watermillKafka(acks sarama.RequiredAcks) (message.Publisher, error) {
	cfg := wkafka.DefaultSaramaSyncPublisherConfig()
	cfg.Producer.RequiredAcks = acks
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: b.seeds, OverwriteSaramaConfig: cfg,
		Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return backends.Aggregate(m), nil }),
	}, watermill.NopLogger{})
	if err != nil {
		return nil, fmt.Errorf("watermill-kafka: %w", err)
	}
	return pub, nil
}
