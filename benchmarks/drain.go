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
	all := []measurement{{
		name:  "Outmill, into nothing",
		once:  func(ctx context.Context) (float64, error) { return b.drainOurs(ctx, nothing{}, false, &bare) },
		notes: func() { b.showWork(&bare) },
	}, {
		name:  "Outmill into Kafka: franz-go, idempotent, acks=all",
		once:  func(ctx context.Context) (float64, error) { return b.drainKafka(ctx, &w) },
		notes: func() { b.showWork(&w) },
	}, {
		name: "Outmill into Kafka: pubsub over watermill-kafka, acks=all", once: b.drainPubSub,
	}}
	if b.incumbentRows > 0 {
		all = append(all, measurement{
			name: "incumbent, defaults",
			once: func(ctx context.Context) (float64, error) { return b.drainIncumbent(ctx, incumbentDefaults()) },
		}, measurement{
			name: "incumbent, tuned: " + tunedText,
			once: func(ctx context.Context) (float64, error) { return b.drainIncumbent(ctx, incumbentTuned()) },
		})
	}
	rates, err := b.inTurn(ctx, "msg/s", all...)
	if err != nil {
		return err
	}
	null, direct := rates[0].median(), rates[1].median()
	b.atLeast("into Kafka against into nothing", 100*direct/null, 70, "%")
	if b.incumbentRows == 0 {
		return nil
	}
	b.atLeast("into Kafka against the incumbent's defaults", direct/rates[3].median(), 25, "×")
	b.atLeast("into Kafka against the incumbent tuned", direct/rates[4].median(), 15, "×")
	b.printf("every topic was read back: nothing missing, nothing invented, in order; repeats: %d\n", b.repeats)
	return nil
}

func (b *bench) drainKafka(ctx context.Context, w *work) (float64, error) {
	broker, err := kafka.New(kafka.Config{Brokers: b.seeds})
	if err != nil {
		return 0, err
	}
	defer func() { _ = broker.Close(ctx) }()
	return b.drainOurs(ctx, broker, true, w)
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
	before, err := b.cpu(ctx)
	if err != nil {
		return 0, err
	}
	rate, err := drainOnce(ctx, s, broker, b.rows, forwarder.Config{Workers: b.workers, Batch: b.batch}, w)
	if err != nil {
		return 0, err
	}
	if err := w.spent(ctx, b, before); err != nil || !check {
		return rate, err
	}
	return rate, b.checkTopic(ctx, topic, b.rows)
}

// cpu is what this process and its sessions have used.
type cpu struct {
	client   float64
	sessions map[int]float64
}

func (b *bench) cpu(ctx context.Context) (c cpu, err error) {
	c.client = cpuOf(os.Getpid())
	c.sessions, err = b.sessions(ctx, b.name)
	return c, err
}

// spent adds a run's records and the CPU time that it took.
func (w *work) spent(ctx context.Context, b *bench, before cpu) error {
	after, err := b.cpu(ctx)
	w.client += after.client - before.client
	w.server += grown(before.sessions, after.sessions)
	w.records += b.rows
	return err
}

// showWork tells what a thousand records cost.
func (b *bench) showWork(w *work) {
	thousands := float64(w.records) / 1000
	b.note("  a worker's time for a thousand: reading", milliseconds(time.Duration(w.read.Load()))/thousands, "ms", "")
	b.note("  publishing", milliseconds(time.Duration(w.publish.Load()))/thousands, "ms", "")
	b.showCPU(w)
}

func (b *bench) showCPU(w *work) {
	thousands := float64(w.records) / 1000
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
