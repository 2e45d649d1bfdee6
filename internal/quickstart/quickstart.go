// Package quickstart shows Outmill at its main job, with nothing to install: an
// order service on SQLite, a forwarder, and a handler on Watermill's in-process
// Pub/Sub. Midway the forwarder dies between the broker's word and its own
// records, and another takes over. In the end the books are compared.
//
// It is what examples/quickstart and outmill demo run.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/shop"
)

const topic = "orders"

// Story is how much happens.
var Story = shop.Story{Orders: 1000, Clerks: 8, Customers: 50}

// Run tells a story and returns an error if the books do not agree.
func Run(ctx context.Context, out io.Writer, s shop.Story) error {
	dir, err := os.MkdirTemp("", "outmill-quickstart-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// The database: the service's own table, and the outbox beside it.
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"), sqlite.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := store.DB().ExecContext(ctx, `create table orders (id integer primary key, customer text not null)`); err != nil {
		return err
	}

	// The consumer: an ordinary Watermill router with an ordinary handler.
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	books := shop.NewBooks(s)
	stopRouter, err := startHandler(ctx, channel, books)
	if err != nil {
		return err
	}
	defer stopRouter()

	// The forwarder's way out: any Watermill publisher is a broker.
	broker, err := pubsub.New(channel, pubsub.Config{})
	if err != nil {
		return err
	}

	say := shop.NewTeller(out)
	say.Line("An order service places %d orders for %d customers, in transactions.", s.Orders, s.Customers)
	started := time.Now()
	orders := shop.StartClerks(s, func(o shop.Order) error { return placeOrder(ctx, store, o, books) })

	if err := forwardUntilItDies(ctx, store, broker, s.Orders/3, say); err != nil {
		return err
	}
	if err := forwardTheRest(ctx, store, broker, orders, say); err != nil {
		return err
	}
	return books.Compare(say, time.Since(started))
}

// placeOrder is what this is all about: the order and its event in one
// transaction. Some customers change their minds before the commit.
func placeOrder(ctx context.Context, store *sqlite.Store, o shop.Order, books *shop.Books) error {
	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing

	if _, err := tx.ExecContext(ctx, `insert into orders (id, customer) values (?, ?)`, o.ID, o.Customer); err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order": %d}`, o.ID))
	backends.SetAggregate(msg, o.Customer)
	if err := store.Publisher(tx).Publish(topic, msg); err != nil {
		return err
	}

	if o.Cancelled {
		books.RolledBack(msg.UUID)
		return tx.Rollback()
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	books.Committed(msg.UUID, o)
	return nil
}

// startHandler receives the events.
func startHandler(ctx context.Context, channel *gochannel.GoChannel, books *shop.Books) (stop func(), err error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddConsumerHandler("ship-orders", topic, channel, func(msg *message.Message) error {
		books.Received(msg)
		return nil
	})
	go func() { _ = router.Run(ctx) }() // ends with Close
	<-router.Running()
	return func() { _ = router.Close(); _ = channel.Close() }, nil
}

// forwardUntilItDies runs a forwarder whose process, so to say, is killed: the
// broker has accepted a batch, and nobody is left to record that.
func forwardUntilItDies(ctx context.Context, store *sqlite.Store, broker backends.Broker, after int, say *shop.Teller) error {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	dying := &shop.Dying{Outbox: store, Kill: kill, After: after}
	fwd, err := forwarder.New(dying, broker, config())
	if err != nil {
		return err
	}
	if err := fwd.Run(ctx); err != nil && !errors.Is(err, shop.ErrDied) {
		return err
	}
	say.Line("Forwarder 1 was killed after %d records, with a batch sent and not recorded.", dying.Settled.Load())
	return nil
}

// forwardTheRest runs a second forwarder until everything has come.
func forwardTheRest(ctx context.Context, store *sqlite.Store, broker backends.Broker, orders *shop.Clerks, say *shop.Teller) error {
	fwd, err := forwarder.New(store, broker, config())
	if err != nil {
		return err
	}
	say.Line("Forwarder 2 takes over.")
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- fwd.Run(ctx) }()
	err = orders.Wait(ctx)
	if err == nil {
		err = emptied(ctx, store)
	}
	stop()
	return errors.Join(err, <-done)
}

// emptied waits until nothing is left in the outbox.
func emptied(ctx context.Context, store *sqlite.Store) error {
	for {
		b, err := store.Backlog(ctx)
		if err != nil || b.Ready+b.Delayed == 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d records are still in the outbox: %w", b.Ready+b.Delayed, ctx.Err())
		}
	}
}

// config has a short lease, so that the take-over is quick to watch.
func config() forwarder.Config {
	return forwarder.Config{
		Batch: 50, Lease: time.Second, PublishTimeout: 500 * time.Millisecond, Shutdown: 5 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
}
