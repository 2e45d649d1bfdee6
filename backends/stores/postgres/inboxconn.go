package postgres

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connTx is a transaction that was begun on a connection in one round trip with
// its first statements, and that only its owner can end.
type connTx struct {
	conn  *pgx.Conn
	ended *atomic.Bool
}

var _ pgx.Tx = connTx{}

// Commit refuses.
func (connTx) Commit(context.Context) error { return errGuarded }

// Rollback refuses.
func (connTx) Rollback(context.Context) error { return errGuarded }

// begun is pgx's own transaction on the connection, for what cannot be done
// without one. The empty statement begins nothing.
func (t connTx) begun(ctx context.Context) (pgx.Tx, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: ";"})
}

// Begin sets a savepoint.
func (t connTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.begun(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Begin(ctx)
}

// LargeObjects implements pgx.Tx.
func (t connTx) LargeObjects() pgx.LargeObjects {
	tx, err := t.begun(context.Background())
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

// CopyFrom implements pgx.Tx.
func (t connTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if t.ended.Load() {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

// SendBatch implements pgx.Tx.
func (t connTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.ended.Load() {
		return endedResults{}
	}
	return t.conn.SendBatch(ctx, b)
}

// Prepare implements pgx.Tx.
func (t connTx) Prepare(ctx context.Context, name, text string) (*pgconn.StatementDescription, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, text)
}

// Exec implements pgx.Tx.
func (t connTx) Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	if t.ended.Load() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.conn.Exec(ctx, text, args...)
}

// Query implements pgx.Tx.
func (t connTx) Query(ctx context.Context, text string, args ...any) (pgx.Rows, error) {
	if t.ended.Load() {
		return endedRows{}, pgx.ErrTxClosed
	}
	return t.conn.Query(ctx, text, args...)
}

// QueryRow implements pgx.Tx.
func (t connTx) QueryRow(ctx context.Context, text string, args ...any) pgx.Row {
	if t.ended.Load() {
		return endedRows{}
	}
	return t.conn.QueryRow(ctx, text, args...)
}

// Conn implements pgx.Tx.
func (t connTx) Conn() *pgx.Conn {
	if t.ended.Load() {
		return nil // the connection is another's by now
	}
	return t.conn
}

// endedRows is what a transaction that has ended answers.
type endedRows struct{ pgx.Rows }

// Scan implements pgx.Row.
func (endedRows) Scan(...any) error { return pgx.ErrTxClosed }

// Err implements pgx.Rows.
func (endedRows) Err() error { return pgx.ErrTxClosed }

// Close implements pgx.Rows.
func (endedRows) Close() {}

// Next implements pgx.Rows.
func (endedRows) Next() bool { return false }

type endedResults struct{ pgx.BatchResults }

// Exec implements pgx.BatchResults.
func (endedResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }

// Query implements pgx.BatchResults.
func (endedResults) Query() (pgx.Rows, error) { return endedRows{}, pgx.ErrTxClosed }

// QueryRow implements pgx.BatchResults.
func (endedResults) QueryRow() pgx.Row { return endedRows{} }

// Close implements pgx.BatchResults.
func (endedResults) Close() error { return pgx.ErrTxClosed }

// end sends the one statement that ends a transaction. An aborted one cannot be
// committed, which is [pgx.ErrTxCommitRollback].
func (t connTx) end(ctx context.Context, text string) error {
	t.ended.Store(true)
	tag, err := t.conn.Exec(ctx, text)
	if err != nil {
		// Nobody may get a connection with a transaction on it.
		return errors.Join(err, t.conn.Close(ctx))
	}
	if text == commit && tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}
