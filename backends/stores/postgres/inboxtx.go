package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// inboxSource begins the transactions of an inbox.
type inboxSource struct {
	store *Store
	cfg   backends.InboxConfig
	begin func(ctx context.Context) (inboxes.Tx, error)
	pool  *pgxpool.Pool
	db    *sql.DB
}

// Begin implements [inboxes.Source].
func (s *inboxSource) Begin(ctx context.Context) (inboxes.Tx, error) {
	tx, err := s.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: inbox: begin: %w", mend(err))
	}
	return tx, nil
}

func (*inboxSource) querier(tx inboxes.Tx) inboxes.Querier {
	switch tx := tx.(type) {
	case *pgxInboxTx:
		return tx.Querier
	case *sqlInboxTx:
		return tx.Querier
	}
	return nil
}

func (s *inboxSource) sql(q inboxes.Querier) inboxSQL {
	return inboxSQL{inboxes.SQL{Dialect: s.store.inbox, Querier: q, Consumer: s.cfg.Name}}
}

// pgxInboxTx is a transaction on a connection of pgx.
type pgxInboxTx struct {
	inboxSQL
	store *Store
	conn  *pgxpool.Conn
	tx    pgx.Tx
}

func (s *inboxSource) beginPGX(ctx context.Context) (inboxes.Tx, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	// Without parameters it is one round trip; both are numbers with a unit.
	settings := strings.NewReplacer("$1", fmt.Sprintf("'%s'", s.settings()[0]), "$2", fmt.Sprintf("'%s'", s.settings()[1])).Replace(settingsText)
	begin := beginWrite + "; " + settings
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		conn.Release()
		return nil, err
	}
	q := pgxQuerier{tx, s.store.cfg.Pooler}
	return &pgxInboxTx{inboxSQL: s.sql(q), store: s.store, conn: conn, tx: tx}, nil
}

// Context implements [inboxes.Native].
func (t *pgxInboxTx) Context(ctx context.Context) context.Context {
	return t.store.WithTx(ctx, guardedTx{t.tx})
}

// Publish implements [inboxes.Native].
func (t *pgxInboxTx) Publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, t.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	return t.store.append(ctx, t.tx, rows)
}

// Commit implements [inboxes.Native].
func (t *pgxInboxTx) Commit(ctx context.Context) error {
	defer t.conn.Release()
	ctx, cancel := limited(ctx)
	defer cancel()
	// A handler can send "commit" as a statement.
	if c := t.conn.Conn(); !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		return fmt.Errorf("postgres: inbox: %w: the handler has ended it, which is the inbox's to do", backends.ErrTransactionDone)
	}
	err := t.tx.Commit(ctx)
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("postgres: inbox: %w: a statement of the handler failed and the handler did not say so", backends.ErrTransactionDone)
	}
	return mend(err)
}

// Rollback implements [inboxes.Native].
func (t *pgxInboxTx) Rollback(ctx context.Context) error {
	defer t.conn.Release()
	ctx, cancel := limited(ctx)
	defer cancel()
	if c := t.conn.Conn(); !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		return nil // the handler was faster
	}
	return mend(t.tx.Rollback(ctx))
}

// guardedTx is what a handler sees.
type guardedTx struct{ pgx.Tx }

var errGuarded = fmt.Errorf("postgres: the transaction is the inbox's to end: return nil to commit it and an error to roll it back: %w", backends.ErrInboxTransaction)

// Commit refuses.
func (guardedTx) Commit(context.Context) error { return errGuarded }

// Rollback refuses.
func (guardedTx) Rollback(context.Context) error { return errGuarded }

// pgxHandle is what a querier needs of a transaction or a pool.
type pgxHandle interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

type pgxQuerier struct {
	handle pgxHandle
	pooler bool
}

func (q pgxQuerier) args(args []any) []any {
	if q.pooler {
		return append([]any{pgx.QueryExecModeExec}, args...)
	}
	return args
}

// Exec implements [inboxes.Querier].
func (q pgxQuerier) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	tag, err := q.handle.Exec(ctx, text, q.args(args)...)
	return tag.RowsAffected(), mend(err)
}

// Query implements [inboxes.Querier].
func (q pgxQuerier) Query(ctx context.Context, each func(scan func(...any) error) error, text string, args ...any) error {
	rows, err := q.handle.Query(ctx, text, q.args(args)...)
	if err != nil {
		return mend(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return mend(rows.Err())
}
