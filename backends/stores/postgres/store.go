package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
)

// Store is an outbox in a Postgres database. It is safe for concurrent use.
type Store struct {
	cfg   Config
	names names
	conns connector
	stmts statements
	inbox *inboxes.Dialect
	owned *pgxpool.Pool // closed by Close

	archiving bool
	inUse     inUse
	closing   sync.Once
}

var (
	_ backends.Outbox      = (*Store)(nil)
	_ backends.DeadLetters = (*Store)(nil)
	_ backends.Waker       = (*Store)(nil)
	_ backends.Purger      = (*Store)(nil)
	_ backends.Pinger      = (*Store)(nil)
)

// ownConns is how many connections a pool of Open's has at least, if the URL does
// not say pool_max_conns: enough for a forwarder at its defaults.
const ownConns = 8

// Open connects to a database by URL or keyword string and makes a store of it.
// The pool is the store's own, so call Close. It does not connect yet: the first
// use does. An error never holds the URL.
func Open(ctx context.Context, url string, cfg Config) (*Store, error) {
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The driver's text may quote parts of the URL.
		return nil, errors.New("postgres: the URL cannot be parsed: expected postgres://user:password@host:port/database?parameters")
	}
	if !strings.Contains(url, "pool_max_conns") {
		pc.MaxConns = max(pc.MaxConns, ownConns)
	}
	if cfg.Pooler {
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("postgres: make the pool: %w", mend(err))
	}
	s, err := New(pool, cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = pool
	return s, nil
}

// New makes a store of a pool, which stays the caller's to close. It connects
// to nothing. A forwarder needs one connection of it for each worker, and two.
// With [Config.Pooler] the pool must use no named prepared
// statements.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, errors.New("postgres: the pool is nil")
	}
	if cfg.Pooler {
		if err := fitsPooler(pool.Config().ConnConfig); err != nil {
			return nil, err
		}
	}
	return newStore(poolConnector{pool}, cfg)
}

// NewSQL makes a store of a database/sql handle, which stays the caller's to
// close. With any driver it serves publishers and Migrate. What a forwarder needs
// of it takes pgx's own driver, sql.Open("pgx", url): with another, or one
// wrapped by something, Check says so.
func NewSQL(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("postgres: the database handle is nil")
	}
	return newStore(sqlConnector{db, cfg.Pooler}, cfg)
}

func newStore(conns connector, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := namesOf(cfg)
	return &Store{cfg: cfg, names: n, conns: conns, stmts: newStatements(n), inbox: inboxDialect(n), archiving: cfg.Retention > 0}, nil
}

// Close closes what Open made and nothing else. It waits for calls under way. The
// error is always nil.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.owned != nil {
			s.owned.Close()
		}
	})
	return nil
}

// Ping asks the database for an answer.
func (s *Store) Ping(ctx context.Context) error {
	return mend(s.conns.with(ctx, func(c *pgx.Conn) error { return c.Ping(ctx) }))
}

// Check implements [backends.Outbox]. It wants Postgres 13 or newer, a server
// that takes writes, the tables of this version, ids that are handed out one at
// a time, and an incarnation table that is unlogged.
func (s *Store) Check(ctx context.Context) error {
	return mend(s.conns.with(ctx, func(c *pgx.Conn) error { return s.check(ctx, c) }))
}

func (s *Store) check(ctx context.Context, c *pgx.Conn) error {
	var version int
	var standby bool
	err := c.QueryRow(ctx, `select current_setting('server_version_num')::int, pg_is_in_recovery()`).Scan(&version, &standby)
	switch {
	case err != nil:
		return err
	case version < 130000:
		return fmt.Errorf("postgres: the server has version %d, 13 or newer is needed", version/10000)
	case standby:
		return errors.New("postgres: the server is a standby: connect to the primary, for example by target_session_attrs=read-write")
	}
	if err := s.checkVersion(ctx, c); err != nil {
		return err
	}
	var cache int64
	var persistence string
	err = c.QueryRow(ctx, `select
		(select seqcache from pg_sequence where seqrelid = pg_get_serial_sequence($1::text, 'id')::regclass),
		(select relpersistence::text from pg_class where oid = $2::text::regclass)`,
		s.names.outbox, s.names.incarnation).Scan(&cache, &persistence)
	switch {
	case err != nil:
		return err
	case cache != 1:
		return fmt.Errorf("postgres: ids of %s are handed out %d at a time, which breaks their order: alter table %s alter column id set cache 1",
			s.names.outbox, cache, s.names.outbox)
	case persistence != "u":
		return fmt.Errorf("postgres: %s must be unlogged: alter table %s set unlogged", s.names.incarnation, s.names.incarnation)
	}
	return nil
}
