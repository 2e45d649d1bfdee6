package connect

import (
	"context"

	"github.com/outmill/outmill/backends"
)

// What there is. A backend is added by its line here and a file of its own that
// says how its URL is read.
var (
	stores = []scheme[Outbox]{
		postgresStore,
		mysqlStore,
		sqliteStore,
		memoryStore,
	}
	brokers = []scheme[backends.Broker]{
		kafkaBroker,
		rabbitBroker,
		natsBroker,
		redisBroker,
		stdoutBroker,
	}
)

// Outbox is a store of any engine. Its value is the engine's own type, such as
// *postgres.Store, so that publishers and optional abilities are found by type
// assertion.
type Outbox interface {
	backends.Outbox
	Migrator
	Close() error
}

// Migrator makes and changes the tables of a store.
type Migrator interface {
	// Migrate makes the tables, or brings them to this version.
	Migrate(ctx context.Context) error
	// MigrationSQL returns the statements of Migrate, for another tool.
	MigrationSQL() (string, error)
}

// Store opens a store by its URL. The caller closes it. Most stores connect at
// their first use; SQLite makes the file if it is not there.
func Store(ctx context.Context, url string) (Outbox, error) {
	return open(ctx, "store", stores, url)
}

// Broker makes a broker by its URL. The caller closes it. It connects at its
// first use.
func Broker(ctx context.Context, url string) (backends.Broker, error) {
	return open(ctx, "broker", brokers, url)
}

// CheckStore reports what is wrong with a store's URL, without opening anything.
func CheckStore(url string) error { return check("store", stores, url) }

// CheckBroker reports what is wrong with a broker's URL, without opening anything.
func CheckBroker(url string) error { return check("broker", brokers, url) }

// Stores describes the stores that there are.
func Stores() []Scheme { return describe(stores) }

// Brokers describes the brokers that there are.
func Brokers() []Scheme { return describe(brokers) }

func describe[T any](list []scheme[T]) []Scheme {
	out := make([]Scheme, len(list))
	for i, s := range list {
		out[i] = s.Scheme
	}
	return out
}

// MigrationSQL returns the statements that make a store's tables, without
// connecting to it.
func MigrationSQL(url string) (string, error) {
	name, o, err := prepare("store", stores, url)
	if err != nil {
		return "", err
	}
	text, err := o.migration()
	return text, told("store", name, err)
}
