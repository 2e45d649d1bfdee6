package postgres_test

import (
	"context"
	"log"
	"os"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
)

// OrderPlaced is an event of an application.
type OrderPlaced struct {
	Order string
}

// eventBus is made once, for the whole program: it takes the transaction from the
// context of each call.
func eventBus(store *postgres.Store) (*cqrs.EventBus, error) {
	return cqrs.NewEventBusWithConfig(store.ContextPublisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		OnPublish: func(p cqrs.OnEventSendParams) error {
			if e, ok := p.Event.(OrderPlaced); ok {
				backends.SetAggregate(p.Message, "order-"+e.Order)
			}
			return nil
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
}

// placeOrder stores an order and its event, or neither.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, bus *cqrs.EventBus, id string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id) values ($1)", id); err != nil {
			return err
		}
		return bus.Publish(postgres.WithTx(ctx, tx), OrderPlaced{Order: id})
	})
}

func ExampleStore_ContextPublisher() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventBus(store)
	if err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(ctx, pool, bus, "42"); err != nil {
		log.Print(err)
	}
}
