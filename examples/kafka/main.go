// Command kafka is the quick start's story on real servers: orders in Postgres,
// two forwarders, of which one dies midway, and watermill-kafka's own
// subscriber reading from Kafka.
//
//	eval "$(make -s services)"
//	go run ./examples/kafka
//
// It reads OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS, works in a schema and a
// topic of its own, and removes both.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/shop"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	url, brokers := os.Getenv("OUTMILL_POSTGRES_URL"), os.Getenv("OUTMILL_KAFKA_BROKERS")
	if url == "" || brokers == "" {
		fmt.Fprintln(os.Stderr, `kafka: OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS must be set: eval "$(make -s services)"`)
		os.Exit(2)
	}
	story := shop.Story{Orders: 5000, Clerks: 8, Customers: 100}
	if err := run(ctx, os.Stdout, story, url, strings.Split(brokers, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "kafka:", err)
		os.Exit(1)
	}
}

// run tells the story and returns an error if the books do not agree.
func run(ctx context.Context, out io.Writer, s shop.Story, url string, brokers []string) error {
	name := "outmill_example_" + strings.ToLower(rand.Text()[:8]) // schema and topic

	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return errors.New("OUTMILL_POSTGRES_URL cannot be used")
	}
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{Schema: name})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	defer func() { _, _ = pool.Exec(context.WithoutCancel(ctx), "drop schema "+name+" cascade") }()
	if _, err := pool.Exec(ctx, "create table "+name+".orders (id int primary key, customer text not null)"); err != nil {
		return err
	}
	removeTopic, err := makeTopic(brokers, name)
	if err != nil {
		return err
	}
	defer removeTopic()

	books := shop.NewBooks(s)
	stopReading, err := startHandler(ctx, brokers, name, books)
	if err != nil {
		return err
	}
	defer stopReading()

	broker, err := kafka.New(kafka.Config{Brokers: brokers})
	if err != nil {
		return err
	}
	defer func() { _ = broker.Close(context.WithoutCancel(ctx)) }()

	say := shop.NewTeller(out)
	say.Line("An order service places %d orders for %d customers in Postgres.", s.Orders, s.Customers)
	started := time.Now()
	orders := shop.StartClerks(s, func(o shop.Order) error { return placeOrder(ctx, pool, store, name, o, books) })
	if err := forward(ctx, store, broker, orders, books, s.Orders/3, say); err != nil {
		return err
	}
	return books.Compare(say, time.Since(started))
}

// placeOrder stores the order and its event in one transaction.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, store *postgres.Store, name string, o shop.Order, books *shop.Books) error {
	var id string
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into "+name+".orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order": %d}`, o.ID))
		backends.SetAggregate(msg, o.Customer)
		id = msg.UUID
		if err := store.Publisher(tx).Publish(name, msg); err != nil {
			return err
		}
		if o.Cancelled {
			return errCancelled
		}
		return nil
	})
	switch {
	case errors.Is(err, errCancelled):
		books.RolledBack(id)
		return nil
	case err != nil:
		return err
	}
	books.Committed(id, o)
	return nil
}

var errCancelled = errors.New("the customer changed their mind")

// forward runs two forwarders side by side. One of them dies in the middle of
// things; the other takes its shards over.
func forward(ctx context.Context, store *postgres.Store, broker backends.Broker, orders *shop.Clerks, books *shop.Books, after int, say *shop.Teller) error {
	mortal, kill := context.WithCancel(ctx)
	defer kill()
	dying := &shop.Dying{Outbox: store, Kill: kill, After: after / 2}
	first, err := start(mortal, dying, broker)
	if err != nil {
		return err
	}
	living, stop := context.WithCancel(ctx)
	defer stop()
	second, err := start(living, store, broker)
	if err != nil {
		return err
	}
	if err := <-first; err != nil && !errors.Is(err, shop.ErrDied) {
		return err
	}
	say.Line("Forwarder 1 of 2 was killed after %d records, with a batch sent and not recorded.", dying.Settled.Load())
	err = orders.Wait(ctx)
	for err == nil && books.Seen() < books.Expected() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			err = fmt.Errorf("%d of %d events came: %w", books.Seen(), books.Expected(), ctx.Err())
		}
	}
	stop()
	return errors.Join(err, <-second)
}

// start runs a forwarder. Its lease is short, so that the take-over is quick to
// watch.
func start(ctx context.Context, store backends.Outbox, broker backends.Broker) (<-chan error, error) {
	fwd, err := forwarder.New(store, broker, forwarder.Config{
		Lease: 3 * time.Second, PublishTimeout: 2 * time.Second, PollMax: time.Second, Batch: 100,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- fwd.Run(ctx) }()
	return done, nil
}

// startHandler is a Watermill service that knows nothing of Outmill.
func startHandler(ctx context.Context, brokers []string, topic string, books *shop.Books) (stop func(), err error) {
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: brokers, Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: topic, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddConsumerHandler("ship-orders", topic, sub, func(msg *message.Message) error {
		books.Received(msg)
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }() // ends with Close
	select {
	case <-router.Running():
	case err := <-ended:
		return nil, errors.Join(err, router.Close())
	}
	return func() { _ = router.Close() }, nil
}

// makeTopic makes a topic of six partitions.
func makeTopic(brokers []string, name string) (remove func(), err error) {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_6_0_0
	admin, err := sarama.NewClusterAdmin(brokers, cfg)
	if err != nil {
		return nil, err
	}
	if err := admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 6, ReplicationFactor: 1}, false); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	return func() {
		_ = admin.DeleteTopic(name)
		_ = admin.Close()
	}, nil
}
