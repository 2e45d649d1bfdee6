package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/outmill/outmill/backends"
)

// Store is an outbox in a MySQL or MariaDB database. It is safe for concurrent
// use.
type Store struct {
	cfg   Config
	names names
	db    *sql.DB

	inUse   inUse
	marks   marksSeen
	owned   bool // closed by Close
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

// Of the handle that Open makes. Idle connections are enough for a forwarder at
// its defaults; none is kept for longer than servers and proxies between do.
const (
	idleConns = 8
	connLife  = 3 * time.Minute
)

// Open makes a store by a data source name of the driver,
// user:password@tcp(host:port)/database?parameters. The handle is the store's
// own, so call Close. It does not connect yet: the first use does. An error never
// holds the name.
func Open(_ context.Context, dsn string, cfg Config) (*Store, error) {
	c, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, errors.New("mysql: the DSN's parameters do not go together: see the driver's documentation")
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(idleConns)
	db.SetConnMaxLifetime(connLife)
	s, err := New(db, cfg)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.owned = true
	return s, nil
}

func parseDSN(dsn string) (*mysql.Config, error) {
	const expected = "expected user:password@tcp(host:port)/database?parameters"
	if scheme, _, found := strings.Cut(dsn, "://"); found && !strings.ContainsAny(scheme, ":@/(") {
		return nil, errors.New("mysql: the DSN is a URL: " + expected)
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		// The driver's text may quote parts of the DSN.
		return nil, errors.New("mysql: the DSN cannot be parsed: " + expected)
	}
	var faults []error
	if c.DBName == "" {
		faults = append(faults, errors.New("mysql: the DSN names no database: "+expected))
	}
	for name, value := range c.Params {
		switch strings.ToLower(name) {
		case "autocommit":
			if !strings.EqualFold(value, "1") && !strings.EqualFold(value, "on") && !strings.EqualFold(value, "true") {
				faults = append(faults, errors.New("mysql: the DSN switches autocommit off: take that parameter out, or statements stay open for ever"))
			}
		case "parsetime", "multistatements", "interpolateparams", "clientfoundrows", "allownativepasswords", "checkconnliveness":
			// The driver takes an unknown spelling for a variable of the server's.
			faults = append(faults, fmt.Errorf("mysql: the DSN's parameter %q is spelt otherwise: see the driver's documentation, case counts", name))
		}
	}
	c.Logger = &mysql.NopLogger{} // what it would log comes back as an error
	if !strings.Contains(dsn, "interpolateParams") {
		c.InterpolateParams = true
	}
	return c, errors.Join(faults...)
}

// New makes a store of a handle of the driver "mysql"
// (github.com/go-sql-driver/mysql), which stays the caller's to close. It
// connects to nothing. A forwarder needs one connection of it for each worker,
// and two.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("mysql: the database handle is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, names: namesOf(cfg.Prefix), db: db}, nil
}

// DB is the store's handle, which the application may use too.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes what Open made and nothing else.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.owned {
			s.closed = s.db.Close()
		}
	})
	return s.closed
}

// Ping asks the database for an answer.
func (s *Store) Ping(ctx context.Context) error { return mend(s.db.PingContext(ctx)) }

// Check implements [backends.Outbox]. It wants MySQL 8.4 or MariaDB 10.6 or
// newer, a server that takes writes, autocommit, the tables of this version in
// InnoDB, and no binary log of statements.
func (s *Store) Check(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return mend(err)
	}
	defer func() { _ = conn.Close() }()
	return mend(s.check(ctx, conn))
}

func (s *Store) check(ctx context.Context, c *sql.Conn) error {
	var version string
	var readOnly, autocommit bool
	err := c.QueryRowContext(ctx, "select version(), @@global.read_only, @@session.autocommit").Scan(&version, &readOnly, &autocommit)
	if err != nil {
		return err
	}
	faults := []error{checkServer(version)}
	if readOnly {
		faults = append(faults, errors.New("mysql: the server is read-only: connect to the primary"))
	}
	if !autocommit {
		faults = append(faults, errors.New("mysql: autocommit is off: switch it on for the connections of this handle, or statements stay open for ever"))
	}
	log, err := s.variables(ctx, c, "log_bin", "binlog_format")
	if err != nil {
		return err
	}
	if log["log_bin"] == "ON" && log["binlog_format"] == "STATEMENT" {
		faults = append(faults, errors.New("mysql: the binary log holds statements, with which READ COMMITTED cannot write: set binlog_format to ROW"))
	}
	if err := s.checkVersion(ctx, c); err != nil {
		return errors.Join(append(faults, mend(err))...)
	}
	return errors.Join(append(faults, s.checkEngine(ctx, c))...)
}

// checkServer refuses servers that lack what the statements use.
func checkServer(version string) error {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "5.5.5-"), "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("mysql: the server's version %q is not understood", version)
	}
	name, least := "MySQL", [2]int{8, 4}
	if strings.Contains(strings.ToLower(version), "mariadb") {
		name, least = "MariaDB", [2]int{10, 6}
	}
	if major < least[0] || major == least[0] && minor < least[1] {
		return fmt.Errorf("mysql: the server is %s %d.%d, %d.%d or newer is needed", name, major, minor, least[0], least[1])
	}
	return nil
}

func (s *Store) variables(ctx context.Context, c *sql.Conn, names ...string) (map[string]string, error) {
	values := map[string]string{}
	err := query(ctx, c, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		values[name] = strings.ToUpper(value)
		return err
	}, "show variables where variable_name in ('"+strings.Join(names, "', '")+"')")
	return values, err
}

// checkEngine wants tables with transactions.
func (s *Store) checkEngine(ctx context.Context, c *sql.Conn) error {
	var others int
	err := c.QueryRowContext(ctx, "select count(*) from information_schema.tables where table_schema = database() and engine <> 'InnoDB' and table_name in ('"+
		strings.ReplaceAll(strings.Join(s.names.tables(), "', '"), "`", "")+"')").Scan(&others)
	if err == nil && others > 0 {
		err = fmt.Errorf("mysql: %d of the outbox's tables are not in InnoDB: alter table … engine = InnoDB", others)
	}
	return err
}
