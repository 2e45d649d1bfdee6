package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Config sets a store up. Its zero value works.
type Config struct {
	// Prefix is put in front of each table's name. At most 24 bytes of lower-case
	// letters, digits and underscores. Default: none.
	Prefix string

	// MaxPayload is how many bytes a payload may have. Default: 16 MiB.
	MaxPayload int

	// Sequences says whether a record with an aggregate is given the next number
	// of its topic and aggregate. Default: On.
	Sequences Sequences

	// Retention keeps delivered records in the archive table for so long.
	// Default: they are deleted.
	Retention time.Duration
}

// Sequences switches the allotting of sequences.
type Sequences uint8

const (
	// On allots sequences.
	On Sequences = iota
	// Off does not.
	Off
)

// validate reports every fault at once.
func (c Config) validate() error {
	faults := []error{records.CheckIdentifier("sqlite: Prefix", c.Prefix, records.MaxPrefixBytes)}
	if c.MaxPayload < 1 || c.MaxPayload > records.HardMaxPayload {
		faults = append(faults, fmt.Errorf("sqlite: MaxPayload is %d, allowed is 1 to %d", c.MaxPayload, records.HardMaxPayload))
	}
	if c.Retention < 0 {
		faults = append(faults, fmt.Errorf("sqlite: Retention is %v, allowed is 0 or more", c.Retention))
	}
	if c.Sequences > Off {
		faults = append(faults, fmt.Errorf("sqlite: Sequences is %d, allowed is On or Off", c.Sequences))
	}
	return errors.Join(faults...)
}

// Store is an outbox in a SQLite database. It is safe for concurrent use.
type Store struct {
	cfg   Config
	names names
	db    *sql.DB // writes
	reads *sql.DB // the same where the caller gave the handle
	inbox *inboxes.Dialect

	inUse   inUse
	owned   bool
	closing sync.Once
	closed  error
}

var (
	_ backends.Outbox      = (*Store)(nil)
	_ backends.DeadLetters = (*Store)(nil)
	_ backends.Waker       = (*Store)(nil)
	_ backends.Purger      = (*Store)(nil)
	_ backends.Pinger      = (*Store)(nil)
)

// busyTimeout is how long a connection waits for the write lock.
const busyTimeout = 5 * time.Second

// Open opens a database file, makes it if it is not there, and sets it up as the
// package's documentation says. The handles are the store's own, so call Close.
func Open(ctx context.Context, path string, cfg Config) (*Store, error) {
	switch {
	case path == "" || path == ":memory:":
		return nil, fmt.Errorf("sqlite: the path is %q: name a file, for an outbox in memory use the memory store", path)
	case strings.HasPrefix(path, "file:"):
		return nil, errors.New("sqlite: the path begins with \"file:\": pass a plain path, or open a DSN of your own with sql.Open and give the handle to New")
	case strings.IndexByte(path, 0) >= 0:
		return nil, errors.New("sqlite: the path holds a NUL byte")
	}
	db, err := sql.Open("sqlite", dsn(path, "immediate"))
	if err != nil {
		return nil, fmt.Errorf("sqlite: open: %w", err)
	}
	db.SetMaxOpenConns(1)
	reads, err := sql.Open("sqlite", dsn(path, "deferred"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open: %w", err), db.Close())
	}
	reads.SetMaxOpenConns(4)
	reads.SetMaxIdleConns(4)
	s, err := newStore(db, reads, cfg)
	if err == nil {
		err = first(ctx, db)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close(), reads.Close())
	}
	s.owned = true
	return s, nil
}

// first makes the file, and finds out if it cannot be. Of several that set a new
// file up at once some are turned away at once, whatever busy_timeout says: to
// change the journal's mode takes a lock that is not waited for.
func first(ctx context.Context, db *sql.DB) error {
	for end := time.Now().Add(busyTimeout); ; {
		err := mend(db.PingContext(ctx))
		var e *sqlitedriver.Error
		if !errors.As(err, &e) || e.Code()&0xff != sqlite3.SQLITE_BUSY || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func dsn(path, begin string) string {
	q := url.Values{"_txlock": {begin}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)",
	}}
	path = filepath.Clean(path) // two slashes in front would name a host
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// New makes a store of a handle of the driver "sqlite" (modernc.org/sqlite),
// which stays the caller's to close. Set it up as Open does: one connection,
// _txlock=immediate, a write-ahead log and a busy timeout. Check refuses a
// database without the last two.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlite: the database handle is nil")
	}
	return newStore(db, db, cfg)
}

func newStore(db, reads *sql.DB, cfg Config) (*Store, error) {
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = records.DefaultMaxPayload
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := namesOf(cfg.Prefix)
	return &Store{cfg: cfg, names: n, db: db, reads: reads, inbox: inboxDialect(n)}, nil
}

// DB is the handle for writing. It is the application's too: one connection, so
// a transaction of it must end before anything else of it goes on.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes what Open made and nothing else.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.owned {
			s.closed = errors.Join(s.reads.Close(), s.db.Close())
		}
	})
	return s.closed
}

// Ping asks the database for an answer.
func (s *Store) Ping(ctx context.Context) error { return mend(s.reads.PingContext(ctx)) }

// Check implements [backends.Outbox]. It wants the tables of this version, a
// write-ahead log and a busy timeout.
func (s *Store) Check(ctx context.Context) error {
	var mode string
	var timeout, have int64
	if err := s.db.QueryRowContext(ctx, "pragma journal_mode").Scan(&mode); err != nil {
		return fmt.Errorf("sqlite: %w", mend(err))
	}
	if err := s.db.QueryRowContext(ctx, "pragma busy_timeout").Scan(&timeout); err != nil {
		return fmt.Errorf("sqlite: %w", mend(err))
	}
	switch {
	case mode != "wal":
		return fmt.Errorf("sqlite: journal_mode is %q: set it to wal, or readers and writers block each other", mode)
	case timeout <= 0:
		return errors.New("sqlite: busy_timeout is 0: set it to 5000, or a writer that meets another fails at once")
	}
	set, err := s.migrations()
	if err != nil {
		return err
	}
	err = s.db.QueryRowContext(ctx, "select coalesce(max(version_id), 0) from "+s.names.migrations+" where is_applied").Scan(&have)
	if err == nil {
		err = set.Compare(have)
	}
	if err != nil {
		return fmt.Errorf("sqlite: %w", mend(err))
	}
	return nil
}

// write runs a transaction on the write connection. It takes the write lock when
// it begins, whatever the handle's own way is.
func (s *Store) write(ctx context.Context, do func(*sql.Conn) error) error {
	return transact(ctx, s.db, "begin immediate", do)
}

// read runs a transaction that sees one state of the database throughout.
func (s *Store) read(ctx context.Context, do func(*sql.Conn) error) error {
	return transact(ctx, s.reads, "begin deferred", do)
}

func transact(ctx context.Context, db *sql.DB, begin string, do func(*sql.Conn) error) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return mend(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	// When ctx ends at the wrong moment, a begin that took effect gives an error
	// too. The connection is the application's as well: nothing may stay open.
	whole := context.WithoutCancel(ctx)
	_, err = conn.ExecContext(ctx, begin)
	if err == nil {
		err = do(conn)
	}
	if err == nil {
		_, err = conn.ExecContext(whole, "commit")
	}
	if err != nil {
		_, _ = conn.ExecContext(whole, "rollback") // fails where there is nothing to roll back
	}
	return mend(err)
}
