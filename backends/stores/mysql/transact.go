package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
)

// querier is what query needs of a connection, a transaction or a pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query calls each for every row.
func query(ctx context.Context, q querier, each func(scan func(...any) error) error, text string, args ...any) (err error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// literal is a name as an SQL literal that no sql_mode and no character set
// touches.
func literal(name string) string { return "x'" + hex.EncodeToString([]byte(name)) + "'" }

func literals(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = literal(n)
	}
	return strings.Join(out, ", ")
}

func integers[T ~int | ~int64](values []T) string {
	var b []byte
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(v), 10)
	}
	return string(b)
}

// readCommitted is for the next statement or transaction alone. A transaction of
// the store's own never locks a gap, whatever the session's isolation level is.
const readCommitted = "set transaction isolation level read committed"

// idleLimit is how many seconds a transaction of the store's own may stand still
// between two statements before the server ends it: a process that is stopped in
// the middle must not hold others up.
const idleLimit = "10"

// deadlockTries is how often a transaction of the store's own is tried.
const deadlockTries = 4

// write runs a transaction of several statements under READ COMMITTED. A
// deadlock is tried again, so do may run several times.
func (s *Store) write(ctx context.Context, do func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		err := s.writeOnce(ctx, do)
		if try == deadlockTries || !numbered(err, errDeadlock, errChanged) {
			return err
		}
	}
}

func (s *Store) writeOnce(ctx context.Context, do func(*sql.Conn) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it may have been dropped
	run := func(text string) {
		if err == nil {
			_, err = conn.ExecContext(ctx, text)
		}
	}
	run("set @outbox_wait_timeout = @@session.wait_timeout, @@session.wait_timeout = " + idleLimit)
	run(readCommitted)
	run("start transaction")
	if err == nil {
		err = do(conn)
	}
	run("commit")
	if err == nil {
		if _, restore := conn.ExecContext(ctx, "set @@session.wait_timeout = @outbox_wait_timeout"); restore == nil {
			return nil
		}
	}
	// Out of the pool with it: the transaction may be open, and the limit is set.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	return err
}
