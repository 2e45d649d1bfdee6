package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// shop is the service that takes orders.
type shop struct {
	topic, schema string
	pool          *pgxpool.Pool
	store         *postgres.Store
}

func newShop(ctx context.Context, pool *pgxpool.Pool, name string) (*shop, error) {
	s := &shop{topic: name, schema: name + "_shop", pool: pool}
	var err error
	if s.store, err = newStore(ctx, pool, s.schema); err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, "create table "+s.schema+".orders (id text primary key, step text not null)")
	return s, err
}

// sell takes orders through all their steps and then forwards what happened to
// Kafka, by a broker that is careless with it.
func (s *shop) sell(ctx context.Context, orders int, brokers []string) (*careless, error) {
	for _, step := range steps {
		if err := s.all(ctx, orders, step); err != nil {
			return nil, err
		}
	}
	broker, err := kafka.New(kafka.Config{Brokers: brokers})
	if err != nil {
		return nil, err
	}
	defer func() { _ = broker.Close(context.WithoutCancel(ctx)) }()
	bad := &careless{Broker: broker}
	fwd, err := forwarder.New(s.store, bad, forwarder.Config{Batch: 500, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- fwd.Run(running) }()

	for {
		b, err := s.store.Backlog(ctx)
		if err != nil {
			return nil, err
		}
		if b.Ready+b.Delayed == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	return bad, <-done
}

// all takes every order through one step, eight at once.
func (s *shop) all(ctx context.Context, orders int, step string) error {
	ids, errs := make(chan int), make(chan error, 8)
	for range cap(errs) {
		go func() {
			var err error
			for id := range ids {
				err = errors.Join(err, s.take(ctx, fmt.Sprintf("order-%d", id), step))
			}
			errs <- err
		}()
	}
	for id := range orders {
		ids <- id + 1
	}
	close(ids)
	var err error
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	return err
}

// take changes the order and says so, in one transaction.
func (s *shop) take(ctx context.Context, order, step string) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into "+s.schema+".orders values ($1, $2) on conflict (id) do update set step = excluded.step", order, step)
		if err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), []byte(step))
		backends.SetAggregate(msg, order)
		return s.store.Publisher(tx).Publish(s.topic, msg)
	})
}

// careless sends some records twice and some before their predecessor, as a chain
// of crashes and retries might.
type careless struct {
	backends.Broker

	mu           sync.Mutex
	twice, early int
}

// Publish implements backends.Broker.
func (c *careless) Publish(ctx context.Context, records []backends.Record) error {
	c.mu.Lock()
	out := make([]backends.Record, 0, 2*len(records))
	last := map[string]int{} // where an aggregate's last record is
	for _, r := range records {
		out = append(out, r)
		if i, there := last[r.Aggregate]; there && rand.IntN(10) == 0 {
			out[i], out[len(out)-1] = out[len(out)-1], out[i]
			c.early++
		}
		last[r.Aggregate] = len(out) - 1
		if rand.IntN(20) == 0 {
			out = append(out, r)
			last[r.Aggregate] = len(out) - 1
			c.twice++
		}
	}
	c.mu.Unlock()
	if err := c.Broker.Publish(ctx, out); err != nil {
		return errors.New("the batch was not sent as a whole: " + err.Error())
	}
	return nil
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
