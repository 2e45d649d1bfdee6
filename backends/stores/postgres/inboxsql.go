package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// sqlInboxTx is a transaction of database/sql.
type sqlInboxTx struct {
	inboxSQL
	store *Store
	conn  *sql.Conn
	tx    *sql.Tx
}

func (s *inboxSource) beginSQL(ctx context.Context) (inboxes.Tx, error) {
	conn, err := s.db.Conn(ctx) // waiting for one ends with ctx
	if err != nil {
		return nil, err
	}
	// A transaction of database/sql would be rolled back when its context ends.
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := tx.ExecContext(ctx, settingsText, s.settings()...); err != nil {
		return nil, errors.Join(err, tx.Rollback(), conn.Close())
	}
	return &sqlInboxTx{inboxSQL: s.sql(sqlQuerier{tx}), store: s.store, conn: conn, tx: tx}, nil
}

// Context implements [inboxes.Native].
func (t *sqlInboxTx) Context(ctx context.Context) context.Context { return t.store.WithTx(ctx, t.tx) }

// Publish implements [inboxes.Native].
func (t *sqlInboxTx) Publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, t.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	return t.store.appendSQL(ctx, t.tx, rows)
}

// Commit implements [inboxes.Native].
func (t *sqlInboxTx) Commit(context.Context) error {
	err := t.tx.Commit()
	defer func() { _ = t.conn.Close() }() // it only goes back
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("postgres: inbox: %w: the handler has ended it, which is the inbox's to do", backends.ErrTransactionDone)
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("postgres: inbox: %w: a statement of the handler failed and the handler did not say so", backends.ErrTransactionDone)
	}
	return mend(err)
}

// Rollback implements [inboxes.Native].
func (t *sqlInboxTx) Rollback(context.Context) error {
	err := t.tx.Rollback()
	defer func() { _ = t.conn.Close() }() // it only goes back
	if errors.Is(err, sql.ErrTxDone) {
		return nil // the handler was faster
	}
	return mend(err)
}

type sqlQuerier struct{ handle SQLTx }

// Exec implements [inboxes.Querier].
func (q sqlQuerier) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	r, err := q.handle.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, mend(err)
	}
	return r.RowsAffected()
}

// Query implements [inboxes.Querier].
func (q sqlQuerier) Query(ctx context.Context, each func(scan func(...any) error) error, text string, args ...any) (err error) {
	rows, err := q.handle.QueryContext(ctx, text, args...)
	if err != nil {
		return mend(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return mend(rows.Err())
}
