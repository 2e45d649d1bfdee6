package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

var _ backends.Inboxes = (*Store)(nil)

// Inbox implements [backends.Inboxes]. The handler gets a *sql.Tx, see
// [TxFromContext]. It holds the one connection that writes: a handler that asks
// the database for anything outside its transaction waits for itself.
//
// One transaction writes at a time, so LockTimeout is the wait for the
// connection, and there is no IdleTimeout.
func (s *Store) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	if err := inboxes.CheckConfig("sqlite", cfg); err != nil {
		return nil, err
	}
	return &inboxes.Inbox{
		Source: inboxSource{s, cfg}, Config: cfg,
		Lists: inboxLists{inboxes.SQLLists{
			SQL:       inboxes.SQL{Dialect: s.inbox, Querier: inboxQuerier{s.reads}, Consumer: cfg.Name},
			Retention: cfg.Retention,
		}, s},
	}, nil
}

func inboxDialect(n names) *inboxes.Dialect {
	return &inboxes.Dialect{
		Tables: n.inbox, Now: now, Past: now + " - ?",
		Ago: func(column string) string { return "(" + now + " - " + column + ")" },
		PurgeText: func(table, column string) string {
			return `delete from ` + table + ` where rowid in (select rowid from ` + table +
				` where consumer = ? and ` + column + ` < {past} order by ` + column + ` limit ?)`
		},
	}
}

// inboxLists reads from the readers and purges on the writer.
type inboxLists struct {
	inboxes.SQLLists
	store *Store
}

// Purge implements [inboxes.Lists].
func (l inboxLists) Purge(ctx context.Context, limit int) (n int, err error) {
	err = l.store.write(ctx, func(c *sql.Conn) error {
		w := l.SQLLists
		w.Querier = inboxQuerier{c}
		n, err = w.Purge(ctx, limit)
		return err
	})
	return n, err
}

type inboxSource struct {
	store *Store
	cfg   backends.InboxConfig
}

// Check implements [inboxes.Source].
func (s inboxSource) Check(ctx context.Context) error { return s.store.Check(ctx) }

// Blameless implements [inboxes.Source].
func (s inboxSource) Blameless(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errors.Is(err, sql.ErrConnDone)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL:
		return true
	}
	return false
}

// inboxTx is a transaction of an inbox. Statements of its own are not cut short:
// SQLite would roll the whole transaction back, and what came next would commit
// by itself.
type inboxTx struct {
	inboxes.SQL
	store *Store
	conn  *sql.Conn
	tx    *sql.Tx
}

// Begin implements [inboxes.Source].
func (s inboxSource) Begin(ctx context.Context) (inboxes.Tx, error) {
	wait := ctx
	if s.cfg.LockTimeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeoutCause(ctx, s.cfg.LockTimeout, errInboxBusy)
		defer cancel()
	}
	conn, err := s.store.db.Conn(wait)
	if err != nil {
		if cause := context.Cause(wait); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("sqlite: inbox: begin: %w", mend(err))
	}
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err == nil && s.store.db == s.store.reads {
		// A handle of the caller's may begin deferred: take the write lock now.
		_, err = tx.ExecContext(context.WithoutCancel(ctx), `update `+s.store.names.changes+` set n = n`)
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: inbox: begin: %w", mend(err)), conn.Close())
	}
	return &inboxTx{
		SQL:   inboxes.SQL{Dialect: s.store.inbox, Querier: inboxQuerier{tx}, Consumer: s.cfg.Name},
		store: s.store, conn: conn, tx: tx,
	}, nil
}

var errInboxBusy = errors.New("another transaction of this process held the write connection for too long")

// Advance implements [inboxes.Rows].
func (t *inboxTx) Advance(ctx context.Context, d *backends.Delivery, newer, mark bool) (step inboxes.Step, ok bool, err error) {
	text := inboxAdvance
	if newer {
		text = inboxNewer
	}
	err = t.Querier.Query(ctx, func(scan func(...any) error) error {
		ok = true
		return scan(&step.Buffered)
	}, t.Dialect.Text(text), d.Sequence, d.MessageID, t.Consumer, d.Topic, d.Aggregate, d.Sequence)
	step.Fresh = true
	if err == nil && ok && mark {
		step.Fresh, err = t.Mark(ctx, d.Topic, d.MessageID)
	}
	return step, ok && err == nil, err
}

const (
	inboxAdvance = `update {sequences} set last = ?, message_id = ?, moved_at = {now}
where consumer = ? and topic = ? and aggregate = ? and last = ? - 1 and parked = '' returning buffered`
	inboxNewer = `update {sequences} set last = ?, message_id = ?, moved_at = {now}
where consumer = ? and topic = ? and aggregate = ? and last between 1 and ? - 1 and parked = '' returning buffered`
)

// Context implements [inboxes.Native].
func (t *inboxTx) Context(ctx context.Context) context.Context { return t.store.WithTx(ctx, t.tx) }

// Publish implements [inboxes.Native].
func (t *inboxTx) Publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, t.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	// 1. A handler's statement is interrupted: SQLite rolls all of it back.
	// 2. The handler says nothing of it.
	// 3. What is appended now would commit by itself.
	if _, err := t.tx.ExecContext(context.WithoutCancel(ctx), "begin"); err == nil {
		_, err = t.tx.ExecContext(context.WithoutCancel(ctx), "rollback")
		return errors.Join(errInterrupted, err)
	}
	return mend(t.store.append(context.WithoutCancel(ctx), t.tx, rows))
}

var errInterrupted = fmt.Errorf("sqlite: inbox: %w: a statement of the handler was interrupted and the handler did not say so", backends.ErrTransactionDone)

// Commit implements [inboxes.Native].
func (t *inboxTx) Commit(context.Context) error {
	defer func() { _ = t.conn.Close() }() // it only goes back
	err := t.tx.Commit()
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlite: inbox: %w: the handler has ended it, which is the inbox's to do", backends.ErrTransactionDone)
	}
	if err != nil && strings.Contains(err.Error(), "no transaction is active") {
		return errInterrupted
	}
	if err != nil {
		// A commit that fails leaves the transaction open on the connection.
		_, _ = t.conn.ExecContext(context.Background(), "rollback")
	}
	return mend(err)
}

// Rollback implements [inboxes.Native].
func (t *inboxTx) Rollback(context.Context) error {
	defer func() { _ = t.conn.Close() }() // it only goes back
	err := t.tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) {
		return nil // the handler was faster
	}
	return mend(err)
}

type inboxQuerier struct{ handle Tx }

// Exec implements [inboxes.Querier].
func (q inboxQuerier) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	r, err := q.handle.ExecContext(context.WithoutCancel(ctx), text, args...)
	if err != nil {
		return 0, mend(err)
	}
	return r.RowsAffected()
}

// Query implements [inboxes.Querier].
func (q inboxQuerier) Query(ctx context.Context, each func(scan func(...any) error) error, text string, args ...any) error {
	return mend(query(context.WithoutCancel(ctx), q.handle, each, text, args...))
}
