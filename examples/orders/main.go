// Command orders is two services with a database each and Kafka between them: a
// shop that publishes what happens to orders, and billing that handles it once and
// in order, although Kafka holds repeats and swapped neighbours. One order cannot
// be billed: it is parked, and requeued once the cause is gone.
//
//	eval "$(make -s services)"
//	go run ./examples/orders
//
// It reads OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS, works in schemas and a
// topic of its own, and removes them.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	url, brokers := os.Getenv("OUTMILL_POSTGRES_URL"), os.Getenv("OUTMILL_KAFKA_BROKERS")
	if url == "" || brokers == "" {
		fmt.Fprintln(os.Stderr, `orders: OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS must be set: eval "$(make -s services)"`)
		os.Exit(2)
	}
	if err := run(ctx, os.Stdout, 500, url, strings.Split(brokers, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// steps are what happens to each order.
var steps = []string{"placed", "paid", "packed", "shipped"}

// poisoned is the order that cannot be billed at first, from its second step on.
const poisoned = "order-13"

// run tells the story and returns an error if the books do not agree.
func run(ctx context.Context, out io.Writer, orders int, url string, brokers []string) error {
	name := "outmill_orders_" + strings.ToLower(rand.Text()[:8])
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return errors.New("OUTMILL_POSTGRES_URL cannot be used")
	}
	defer pool.Close()
	removeTopic, err := makeTopic(brokers, name)
	if err != nil {
		return err
	}
	defer removeTopic()

	shop, err := newShop(ctx, pool, name)
	if err != nil {
		return err
	}
	defer drop(ctx, pool, shop.schema)
	bills, err := newBilling(ctx, pool, name, brokers)
	if err != nil {
		return err
	}
	defer drop(ctx, pool, bills.schema)

	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	say("A shop takes %d orders, four steps each. Billing is another service with a database of its own.", orders)
	stop, err := bills.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	careless, err := shop.sell(ctx, orders, brokers)
	if err != nil {
		return err
	}
	say("On the way to Kafka %d events were sent twice and %d before their predecessor.", careless.twice, careless.early)

	events := orders * len(steps)
	held := len(steps) - 1 // all of the poisoned order but its first step
	if err := bills.wait(ctx, events-held, held); err != nil {
		return err
	}
	say("%s could not be billed: it is parked with %d dead letters, and every other order went on.", poisoned, held)
	bills.cured.Store(true)
	n, err := bills.dead.Requeue(ctx, backends.InboxTarget{Key: backends.InboxKey{Topic: name, Aggregate: poisoned}})
	if err != nil {
		return err
	}
	say("The cause is gone: requeue puts %d events back.", n)
	if err := bills.wait(ctx, events, 0); err != nil {
		return err
	}
	return bills.verdict(ctx, say, events, orders)
}

// newStore makes a service's schema.
func newStore(ctx context.Context, pool *pgxpool.Pool, schema string) (*postgres.Store, error) {
	store, err := postgres.New(pool, postgres.Config{Schema: schema})
	if err != nil {
		return nil, err
	}
	return store, store.Migrate(ctx)
}

func drop(ctx context.Context, pool *pgxpool.Pool, schema string) {
	_, _ = pool.Exec(context.WithoutCancel(ctx), "drop schema if exists "+schema+" cascade")
}
