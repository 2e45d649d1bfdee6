package postgres

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outmill/outmill/backends"
)

// mend says what a database error means here and what to do about it. Only the
// server's code and message are kept: its detail may quote values.
func mend(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("postgres: %w: publish before the commit", backends.ErrTransactionDone)
	case !errors.As(err, &pg):
		return err
	}
	short := &serverError{code: pg.Code, message: pg.Message, err: err}
	switch pg.Code {
	case "25P02": // in_failed_sql_transaction
		return fmt.Errorf("postgres: %w by an earlier error in it: roll it back: %w", backends.ErrTransactionDone, short)
	case "42P01", "3F000", "42703": // undefined table, schema, column
		return fmt.Errorf("postgres: %w: run Migrate, and check Schema, Prefix and the search_path: %w", backends.ErrSchema, short)
	case "42501": // insufficient_privilege
		return fmt.Errorf("postgres: the database user lacks a right: grant it (docs/backends.md lists what each part needs): %w", short)
	case "25006": // read_only_sql_transaction
		return fmt.Errorf("postgres: the transaction is read-only: begin it for writing, on the primary: %w", short)
	}
	return short
}

// serverError is a server's error without its detail, which may hold values.
type serverError struct {
	code, message string
	err           error
}

func (e *serverError) Error() string { return e.message + " (SQLSTATE " + e.code + ")" }
func (e *serverError) Unwrap() error { return e.err }
