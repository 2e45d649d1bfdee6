package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

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
	tx    connTx
}

func (s *inboxSource) beginPGX(ctx context.Context) (inboxes.Tx, error) {
	return s.beginWith(ctx, func(*pgx.Batch) {})
}

// beginWith begins a transaction with its first statements in one round trip.
func (s *inboxSource) beginWith(ctx context.Context, first func(b *pgx.Batch)) (inboxes.Tx, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.Queue(beginWrite)
	b.Queue(settingsText, s.settings()...)
	first(b)
	tx := connTx{conn.Conn(), &atomic.Bool{}}
	if err := tx.conn.SendBatch(ctx, b).Close(); err != nil {
		if !tx.conn.IsClosed() && tx.conn.PgConn().TxStatus() != 'I' {
			// The first error is the one to report.
			_ = tx.end(context.WithoutCancel(ctx), rollback)
		}
		conn.Release()
		return nil, err
	}
	return &pgxInboxTx{inboxSQL: s.sql(pgxQuerier{tx, s.store.cfg.Pooler}), store: s.store, conn: conn, tx: tx}, nil
}

// Start implements [inboxes.Starter].
func (s *inboxSource) Start(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (tx inboxes.Tx, step inboxes.Step, ok bool, err error) {
	if s.pool == nil {
		tx, err = s.Begin(ctx)
		return tx, step, false, err
	}
	tx, err = s.beginWith(ctx, func(b *pgx.Batch) {
		if order == backends.AnyOrder {
			b.Queue(s.store.inbox.Text(inboxes.MarkText), s.cfg.Name, d.Topic, d.MessageID).Exec(func(tag pgconn.CommandTag) error {
				step.Fresh, ok = tag.RowsAffected() > 0, true
				return nil
			})
			return
		}
		text, args := advanceText(s.cfg.Name, d, order == backends.Newer, !s.cfg.NoMarks)
		b.Queue(s.store.inbox.Text(text), args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				ok = true
				if err := rows.Scan(&step.Buffered, &step.Fresh); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	if err != nil {
		return nil, step, false, fmt.Errorf("postgres: inbox: begin: %w", mend(err))
	}
	return tx, step, ok, nil
}

// Context implements [inboxes.Native].
func (t *pgxInboxTx) Context(ctx context.Context) context.Context { return t.store.WithTx(ctx, t.tx) }

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
	if c := t.tx.conn; !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		t.tx.ended.Store(true)
		return fmt.Errorf("postgres: inbox: %w: the handler has ended it, which is the inbox's to do", backends.ErrTransactionDone)
	}
	err := t.tx.end(ctx, commit)
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
	if c := t.tx.conn; !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		t.tx.ended.Store(true)
		return nil // the handler was faster
	}
	return mend(t.tx.end(ctx, rollback))
}

var errGuarded = fmt.Errorf("postgres: the transaction is the inbox's to end: return nil to commit it and an error to roll it back: %w", backends.ErrInboxTransaction)

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
