package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/consumer"
	"github.com/outmill/outmill/middleware"
)

// billing is the service that bills orders.
type billing struct {
	topic, schema string
	brokers       []string
	pool          *pgxpool.Pool
	inbox         *consumer.Consumer
	dead          backends.InboxDeadLetters
	cured         atomic.Bool
}

func newBilling(ctx context.Context, pool *pgxpool.Pool, name string, brokers []string) (*billing, error) {
	b := &billing{topic: name, schema: name + "_billing", brokers: brokers, pool: pool}
	store, err := newStore(ctx, pool, b.schema)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "create table "+b.schema+".ledger (n bigserial, order_id text not null, sequence bigint not null)"); err != nil {
		return nil, err
	}
	b.inbox, err = consumer.New(store, consumer.Config{
		Name: "billing", MaxAttempts: 3, PublishTopic: "bills", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	dead, ok := b.inbox.DeadLetters()
	if !ok {
		return nil, errors.New("the store has no dead letters")
	}
	b.dead = dead
	return b, nil
}

// bill writes to the ledger in the inbox's own transaction and answers through the
// outbox: both happen once, or not at all.
func (b *billing) bill(msg *message.Message) ([]*message.Message, error) {
	order := backends.Aggregate(msg)
	sequence, _ := backends.Sequence(msg)
	tx, ok := postgres.TxFromContext(msg.Context())
	if !ok {
		return nil, backends.ErrNoTransaction
	}
	_, err := tx.Exec(msg.Context(), "insert into "+b.schema+".ledger (order_id, sequence) values ($1, $2)", order, sequence)
	if err != nil {
		return nil, err
	}
	if order == poisoned && sequence > 1 && !b.cured.Load() {
		return nil, errors.New("the customer has no address")
	}
	if string(msg.Payload) != "shipped" {
		return nil, nil
	}
	answer := message.NewMessage(watermill.NewUUID(), []byte("billed"))
	backends.SetAggregate(answer, order)
	return []*message.Message{answer}, nil
}

// start runs the service until stop.
func (b *billing) start(ctx context.Context) (stop func(), err error) {
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: b.brokers, Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: b.topic, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	// What bill returns goes to the outbox, so the router has nothing to publish.
	router.AddHandler("bill", b.topic, sub, "bills", nothing{}, b.bill).AddMiddleware(middleware.Inbox(b.inbox))
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- b.inbox.Run(running) }()
	go func() { ended <- router.Run(running) }()
	select {
	case <-router.Running():
	case err := <-ended:
		cancel()
		return nil, errors.Join(err, router.Close(), <-ended)
	}
	return func() {
		cancel()
		_, _ = <-ended, <-ended // cut short by the stop
	}, nil
}

// nothing is a publisher that nothing reaches.
type nothing struct{}

// Publish implements message.Publisher.
func (nothing) Publish(string, ...*message.Message) error {
	return errors.New("the inbox leaves nothing to publish")
}

// Close implements message.Publisher.
func (nothing) Close() error { return nil }

// wait waits until so many steps are in the ledger and so many are dead letters.
func (b *billing) wait(ctx context.Context, ledger, dead int) error {
	for {
		var l, d int
		err := b.pool.QueryRow(ctx, "select (select count(*) from "+b.schema+".ledger), (select count(*) from "+b.schema+".inbox_dead)").Scan(&l, &d)
		if err != nil {
			return err
		}
		if l >= ledger && d >= dead {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d steps billed, %d of %d parked: %w", l, ledger, d, dead, ctx.Err())
		}
	}
}

// verdict compares the ledger with what the shop committed.
func (b *billing) verdict(ctx context.Context, say func(string, ...any), events, orders int) error {
	var billed, distinct, inverted, answers int
	err := b.pool.QueryRow(ctx, `with l as (select order_id, sequence, lag(sequence) over (partition by order_id order by n) as before from `+b.schema+`.ledger)
select count(*), count(distinct (order_id, sequence)), count(*) filter (where sequence <> coalesce(before, 0) + 1),
    (select count(*) from `+b.schema+`.outbox where topic = 'bills') from l`).Scan(&billed, &distinct, &inverted, &answers)
	if err != nil {
		return err
	}
	say("")
	say("  committed     %6d", events)
	say("  billed        %6d", billed)
	say("  answered      %6d", answers)
	say("")
	wrong := false
	for _, v := range []struct {
		name string
		n    int
	}{{"missing", events - distinct}, {"billed twice", billed - distinct}, {"out of order", inverted}, {"no answer", orders - answers}} {
		mark := "ok"
		if v.n != 0 {
			mark, wrong = "WRONG", true
		}
		say("  %-13s %6d   %s", v.name, v.n, mark)
	}
	say("")
	if wrong {
		return errors.New("the books do not agree")
	}
	say("Every order was billed once, in order.")
	return nil
}
