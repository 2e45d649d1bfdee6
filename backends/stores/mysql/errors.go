package mysql

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/outmill/outmill/backends"
)

// Numbers of server errors, alike in MySQL and MariaDB.
const (
	errDeadlock    = 1213
	errLockTimeout = 1205
	errNoWait      = 3572 // MySQL's answer to NOWAIT; MariaDB's is errLockTimeout
	errChanged     = 1020 // MariaDB, innodb_snapshot_isolation
)

// mend says what a database error means here and what to do about it. Of the
// server's message no value is kept.
func mend(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrConnDone):
		return fmt.Errorf("mysql: %w: publish before the commit", backends.ErrTransactionDone)
	case errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("mysql: a statement is larger than max_allowed_packet: publish smaller payloads, or raise it on the server: %w", err)
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("mysql: the connection was lost, and its transaction with it: %w", err)
	case err.Error() == "sql: database is closed":
		return fmt.Errorf("mysql: the database handle is %w", backends.ErrClosed)
	}
	short := shorten(err)
	if short == nil {
		return err
	}
	switch short.number {
	case 1146, 1049, 1046, 1054: // no such table, database or column, no database selected
		return fmt.Errorf("mysql: %w: run Migrate, and check Prefix and the database in the DSN: %w", backends.ErrSchema, short)
	case 1142, 1143, 1044, 1045, 1227, 1370: // denied
		return fmt.Errorf("mysql: the database user lacks a right, see the grants in docs/backends.md: %w", short)
	case 1290, 1792, 1836, 3100: // read-only server, transaction or mode
		return fmt.Errorf("mysql: the server or the transaction is read-only: begin it for writing, on the primary: %w", short)
	case errDeadlock:
		return fmt.Errorf("mysql: a deadlock, the server has rolled the transaction back: roll back and try it again: %w", short)
	case errLockTimeout:
		return fmt.Errorf("mysql: another transaction held a lock for longer than innodb_lock_wait_timeout: roll back and try again, and keep transactions short: %w", short)
	case errChanged:
		return fmt.Errorf("mysql: a row has changed since the transaction's snapshot: roll back and try it again: %w", short)
	case 1153: // packet too large
		return fmt.Errorf("mysql: a statement is larger than max_allowed_packet: publish smaller payloads, or raise it on the server: %w", short)
	}
	return short
}

// serverError is a server's error. Where its message may quote values, only the
// number is shown.
type serverError struct {
	number  uint16
	message string
	err     error
}

func (e *serverError) Error() string { return fmt.Sprintf("error %d: %s", e.number, e.message) }
func (e *serverError) Unwrap() error { return e.err }

// quoting are the errors whose messages quote values or SQL.
var quoting = []uint16{1062, 1064, 1149, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 3140, 3819, 4025}

func shorten(err error) *serverError {
	var own *serverError
	if errors.As(err, &own) {
		return own
	}
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return nil
	}
	text := e.Message
	if slices.Contains(quoting, e.Number) {
		text = "the message is left out, it may quote values"
		err = nil
	}
	return &serverError{number: e.Number, message: text, err: err}
}

// numbered reports whether err is a server's error of one of the numbers.
func numbered(err error, numbers ...uint16) bool {
	short := shorten(err)
	return short != nil && slices.Contains(numbers, short.number)
}
