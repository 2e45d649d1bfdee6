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
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("postgres: %w: publish before the commit", backends.ErrTransactionDone)
	case err.Error() == "closed pool", err.Error() == "sql: database is closed":
		return fmt.Errorf("postgres: the pool of connections is %w", backends.ErrClosed)
	}
	short := short(err)
	if short == nil {
		return err
	}
	switch short.code {
	case "25P02": // in_failed_sql_transaction
		return fmt.Errorf("postgres: %w by an earlier error in it: roll it back: %w", backends.ErrTransactionDone, short)
	case "42P01", "3F000", "42703": // undefined table, schema, column
		return fmt.Errorf("postgres: %w: run Migrate, and check Schema, Prefix and the search_path: %w", backends.ErrSchema, short)
	case denied:
		return fmt.Errorf("postgres: the database user lacks a right: it needs usage on the schema, and select, insert, update and delete on the outbox's tables: %w", short)
	case "25006": // read_only_sql_transaction
		return fmt.Errorf("postgres: the transaction is read-only: begin it for writing, on the primary: %w", short)
	}
	return short
}

const denied = "42501" // insufficient_privilege

// mendAppend is mend for publishers, which need fewer rights.
func (s *Store) mendAppend(err error) error {
	short := short(err)
	if short == nil || short.code != denied {
		return mend(err)
	}
	schema := ""
	if s.cfg.Schema != "" {
		schema = fmt.Sprintf("grant usage on schema %q to the_user; ", s.cfg.Schema)
	}
	return fmt.Errorf("postgres: the database user may not publish: run %sgrant insert on %s to the_user; grant select, insert, update on %s to the_user: %w",
		schema, s.names.outbox, s.names.sequences, short)
}

// serverError is a server's error without its detail, which may hold values.
type serverError struct {
	code, message string
	err           error
}

func (e *serverError) Error() string { return e.message + " (SQLSTATE " + e.code + ")" }
func (e *serverError) Unwrap() error { return e.err }

// short is a server's error from whatever driver; nil if it is none.
func short(err error) *serverError {
	var own *serverError
	if errors.As(err, &own) {
		return own
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return &serverError{code: pg.Code, message: pg.Message, err: err}
	}
	var other interface {
		error
		SQLState() string
	}
	if errors.As(err, &other) {
		return &serverError{code: other.SQLState(), message: other.Error(), err: err}
	}
	return nil
}
