package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the incumbent's handle
)

// incumbent is Watermill's own way: its SQL publisher and subscriber with the
// forwarder component between, and its Kafka publisher.
type incumbent struct {
	schema wsql.DefaultPostgreSQLSchema
	poll   time.Duration
}

func incumbentDefaults() incumbent { return incumbent{} }

// tunedText says what incumbentTuned changes.
const tunedText = "batches of 1000, poll 10 ms"

// incumbentTuned has what its settings offer. It sends one message a call and
// waits for each, so that a larger batch saves statements only.
func incumbentTuned() incumbent {
	return incumbent{schema: wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}, poll: 10 * time.Millisecond}
}

// counted tells how many messages a publisher has sent.
type counted struct {
	message.Publisher
	sent *counter
}

func (c counted) Publish(topic string, msgs ...*message.Message) error {
	err := c.Publisher.Publish(topic, msgs...)
	if err == nil {
		c.sent.add(len(msgs))
	}
	return err
}

// incumbentWorld is a running incumbent.
type incumbentWorld struct {
	db       *sql.DB
	config   incumbent
	outbox   string // the forwarder's topic: a table
	tx       func(tx *sql.Tx) (message.Publisher, error)
	teardown func()
}

func (b *bench) incumbent(ctx context.Context, c incumbent) (*incumbentWorld, error) {
	schema := b.newSchema()
	if _, err := b.pool.Exec(ctx, "create schema "+schema); err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", b.with("search_path="+schema))
	if err != nil {
		return nil, err
	}
	w := &incumbentWorld{db: db, config: c, outbox: "outbox"}
	w.teardown = func() {
		_ = db.Close()
		b.dropSchema(ctx, schema)
	}
	w.tx = func(tx *sql.Tx) (message.Publisher, error) {
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: c.schema}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		return wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: w.outbox}), nil
	}
	sub, err := w.subscriber()
	if err == nil {
		err = errors.Join(sub.SubscribeInitialize(w.outbox), sub.Close())
	}
	if err != nil {
		w.teardown()
	}
	return w, err
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
	if err := w.fill(ctx, topic, b.incumbentRows); err != nil {
		return 0, err
	}
	pub, err := b.watermillKafka(sarama.WaitForLocal) // its default
	if err != nil {
		return 0, err
	}
	defer func() { _ = pub.Close() }()
	sent := newCounter(b.incumbentRows)
	began := time.Now()
	stop, err := w.forward(ctx, counted{pub, sent})
	if err != nil {
		return 0, err
	}
	err = sent.wait(ctx)
	took := time.Since(began)
	stop()
	if err != nil {
		return 0, fmt.Errorf("the incumbent: %w", err)
	}
	return float64(b.incumbentRows) / took.Seconds(), b.checkTopic(ctx, topic, b.incumbentRows)
}

// fill publishes n messages in transactions of a thousand.
func (w *incumbentWorld) fill(ctx context.Context, topic string, n int) error {
	for done := 0; done < n; done += 1000 {
		if err := w.publish(ctx, topic, messages(done, min(1000, n-done))...); err != nil {
			return err
		}
	}
	return nil
}

// publish is one transaction.
func (w *incumbentWorld) publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	p, err := w.tx(tx)
	if err == nil {
		err = p.Publish(topic, msgs...)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
