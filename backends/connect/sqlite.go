package connect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/internal/settings"
)

// outboxParams are the parameters that every store has, then its own.
func outboxParams[C any](maxPayload func(*C) *int, retention func(*C) *time.Duration, prefix func(*C) *string,
	own ...settings.Setting[C],
) []settings.Setting[C] {
	return append([]settings.Setting[C]{
		settings.Size("max_payload", "MaxPayload", "16MiB", "How many bytes a payload may have.", maxPayload),
		settings.DurationOrZero("retention", "Retention", "0", "How long delivered records are kept in the archive table. 0: they are deleted.", retention),
		settings.Text("prefix", "Prefix", "none", "Put in front of each table's name, so that one schema can hold several outboxes.", prefix),
	}, own...)
}

type sqliteConfig struct {
	sqlite.Config
	path     string
	existing bool
}

var sqliteStore = define(
	Scheme{
		Names:   []string{"sqlite"},
		Example: "sqlite:/var/lib/shop/shop.db",
		Doc:     "A SQLite file, absolute or relative to the working directory. In the path write ? as %3F, # as %23 and % as %25.",
	},
	outboxParams(
		func(c *sqliteConfig) *int { return &c.MaxPayload },
		func(c *sqliteConfig) *time.Duration { return &c.Retention },
		func(c *sqliteConfig) *string { return &c.Prefix },
		settings.Choice("sequences", "Sequences", "on", "Whether a record with an aggregate is given the next number of its topic and aggregate.",
			func(c *sqliteConfig) *sqlite.Sequences { return &c.Sequences },
			settings.Option[sqlite.Sequences]{Name: "on", Value: sqlite.On}, settings.Option[sqlite.Sequences]{Name: "off", Value: sqlite.Off}),
		settings.Bool("existing", "", "false", "Refuse a file that is not there, instead of making it.",
			func(c *sqliteConfig) *bool { return &c.existing }),
	),
	func(a address, c *sqliteConfig) error {
		switch c.path = a.path; {
		case a.named || len(a.hosts) > 0:
			return errors.New("a host is named: write sqlite:file.db for a file in the working directory, sqlite:/folder/file.db for another")
		case a.path == "" || a.path == "/":
			return errors.New("no file is named: write sqlite:file.db or sqlite:/folder/file.db")
		case a.path == ":memory:":
			return errors.New("an outbox in memory is another store: write memory: in place of it")
		}
		return nil
	},
	func(c sqliteConfig) opening[Outbox] {
		return opening[Outbox]{
			open: func(ctx context.Context) (Outbox, error) {
				if _, err := os.Stat(c.path); c.existing && err != nil {
					return nil, fmt.Errorf("%w: the file is not there, or cannot be seen: %w", backends.ErrSchema, errors.Unwrap(err))
				}
				store, err := sqlite.Open(ctx, c.path, c.Config)
				if err != nil {
					return nil, err
				}
				return store, nil
			},
			check: func() error { return unopened(c, func(*sqlite.Store) error { return nil }) },
			migration: func() (text string, err error) {
				err = unopened(c, func(s *sqlite.Store) error {
					text, err = s.MigrationSQL()
					return err
				})
				return text, err
			},
		}
	},
)

// unopened uses a store that is connected to nothing.
func unopened(c sqliteConfig, use func(*sqlite.Store) error) error {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	store, err := sqlite.New(db, c.Config)
	if err == nil {
		err = use(store)
	}
	return errors.Join(err, db.Close())
}

var memoryStore = define(
	Scheme{
		Names: []string{"memory"}, Example: "memory:",
		Doc: "An outbox in the memory of the process, for tests. Nothing of it outlives the process.",
	},
	[]settings.Setting[memory.Config]{
		settings.Size("max_payload", "MaxPayload", "16MiB", "How many bytes a payload may have.", func(c *memory.Config) *int { return &c.MaxPayload }),
		settings.DurationOrZero("retention", "Retention", "0", "How long delivered records are kept.", func(c *memory.Config) *time.Duration { return &c.Retention }),
		settings.Choice("sequences", "SequencesOff", "on", "Whether a record with an aggregate is given a sequence.",
			func(c *memory.Config) *bool { return &c.SequencesOff },
			settings.Option[bool]{Name: "on"}, settings.Option[bool]{Name: "off", Value: true}),
	},
	func(a address, _ *memory.Config) error { return a.nothing() },
	func(c memory.Config) opening[Outbox] {
		open := func(context.Context) (Outbox, error) {
			store, err := memory.New(c)
			if err != nil {
				return nil, err
			}
			return store, nil
		}
		return lazily(open)
	},
)
