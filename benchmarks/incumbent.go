package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the incumbent's handle

	"github.com/outmill/outmill/backends"
)

// incumbent is Watermill's own way: its SQL publisher and subscriber with the
// forwarder component between, and its Kafka publisher.
type incumbent struct {
	schema wsql.DefaultPostgreSQLSchema
	poll   time.Duration
}

func incumbentDefaults() incumbent { return incumbent{} }

// incumbentTuned has what its settings offer: larger batches and a short poll.
func incumbentTuned() incumbent {
	return incumbent{schema: wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}, poll: 10 * time.Millisecond}
}

// counted counts what a publisher has sent.
type counted struct {
	message.Publisher
	n  atomic.Int64
	on func(n int64)
}

func (c *counted) Publish(topic string, msgs ...*message.Message) error {
	if err := c.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	c.on(c.n.Add(int64(len(msgs))))
	return nil
}

// incumbentWorld is a running incumbent.
type incumbentWorld struct {
	db       *sql.DB
	config   incumbent
	outbox   string // the forwarder's topic: a table
	tx       func(tx *sql.Tx) (message.Publisher, error)
	schema   string
	teardown func()
}

func (b *bench) incumbent(ctx context.Context, c incumbent) (*incumbentWorld, error) {
	schema := "bench_" + strings.ToLower(rand.Text()[:12])
	if _, err := b.pool.Exec(ctx, "create schema "+schema); err != nil {
		return nil, err
	}
	sep := "?"
	if strings.Contains(b.url, "?") {
		sep = "&"
	}
	db, err := sql.Open("pgx", b.url+sep+"search_path="+schema)
	if err != nil {
		return nil, err
	}
	w := &incumbentWorld{db: db, config: c, outbox: "outbox", schema: schema}
	w.teardown = func() {
		_ = db.Close()
		_, _ = b.pool.Exec(context.WithoutCancel(ctx), "drop schema if exists "+schema+" cascade")
	}
	w.tx = func(tx *sql.Tx) (message.Publisher, error) {
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: c.schema}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		return wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: w.outbox}), nil
	}
	sub, err := w.subscriber()
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Close() }()
	return w, sub.SubscribeInitialize(w.outbox)
}

func (w *incumbentWorld) subscriber() (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(w.db, wsql.SubscriberConfig{
		SchemaAdapter: w.config.schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true, PollInterval: w.config.poll,
	}, watermill.NopLogger{})
}

// forward starts the incumbent's forwarder; stop ends it.
func (w *incumbentWorld) forward(ctx context.Context, out message.Publisher) (stop func(), err error) {
	sub, err := w.subscriber()
	if err != nil {
		return nil, err
	}
	fwd, err := wforwarder.NewForwarder(sub, out, watermill.NopLogger{}, wforwarder.Config{ForwarderTopic: w.outbox})
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = fwd.Run(ctx) })
	return func() {
		_ = fwd.Close()
		wg.Wait()
	}, nil
}

func (b *bench) watermillKafka() (message.Publisher, error) {
	return wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers:   b.seeds,
		Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return backends.Aggregate(m), nil }),
	}, watermill.NopLogger{})
}

func (b *bench) drainIncumbent(ctx context.Context, c incumbent) (float64, error) {
	w, err := b.incumbent(ctx, c)
	if err != nil {
		return 0, err
	}
	defer w.teardown()
	topic, dropTopic, err := b.topic(ctx)
	if err != nil {
		return 0, err
	}
	defer dropTopic()
	if err := w.fill(ctx, topic, b.options.incumbent); err != nil {
		return 0, err
	}
	pub, err := b.watermillKafka()
	if err != nil {
		return 0, err
	}
	defer func() { _ = pub.Close() }()
	done := make(chan struct{})
	want := int64(b.options.incumbent)
	var once sync.Once
	out := &counted{Publisher: pub, on: func(n int64) {
		if n >= want {
			once.Do(func() { close(done) })
		}
	}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	start := time.Now()
	stop, err := w.forward(ctx, out)
	if err != nil {
		return 0, err
	}
	defer stop()
	select {
	case <-done:
		return float64(want) / time.Since(start).Seconds(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the incumbent forwarded %d of %d", out.n.Load(), want)
	}
}

// fill publishes n messages in transactions of a thousand.
func (w *incumbentWorld) fill(ctx context.Context, topic string, n int) error {
	for done := 0; done < n; done += 1000 {
		tx, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		pub, err := w.tx(tx)
		if err == nil {
			err = pub.Publish(topic, messages(done, min(1000, n-done))...)
		}
		if err != nil {
			_ = tx.Rollback()
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
