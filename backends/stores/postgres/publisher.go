package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// SQLTx is what a publisher needs of a database/sql transaction: *sql.Tx and
// *sqlx.Tx have it, and so do the handles of most mappers.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Publisher returns a Watermill publisher that appends to the outbox in a
// transaction, which stays the caller's to commit or roll back. It is cheap:
// make one for each transaction. Close does nothing.
//
// Publish appends all messages of a call in their order, or none, in one round
// trip, and touches nothing but the outbox. A message that cannot be stored
// gives an error that joins a [backends.MessageError] for each fault, before
// anything is sent: the transaction stays usable. After an error of the
// database, Postgres refuses everything but a rollback.
//
// Calls on one publisher are serialised. A transaction must not be used by
// several goroutines in any other way.
func (s *Store) Publisher(tx pgx.Tx) message.Publisher {
	return &publisher{store: s, to: func(ctx context.Context, rows []records.Row) error {
		if tx == nil {
			return errNilTx
		}
		return s.append(ctx, tx, rows)
	}}
}

// SQLPublisher is [Store.Publisher] for a database/sql transaction.
func (s *Store) SQLPublisher(tx SQLTx) message.Publisher {
	return &publisher{store: s, to: func(ctx context.Context, rows []records.Row) error {
		if tx == nil {
			return errNilTx
		}
		return s.appendSQL(ctx, tx, rows)
	}}
}

// ContextPublisher returns a publisher that takes its transaction from the
// context of each call's first message: what [WithTx] or [WithSQLTx] put there.
// Without one, or with one of another database, Publish gives
// [backends.ErrNoTransaction]. It is safe for concurrent use, so one may serve a
// whole program, as the publisher of a cqrs.EventBus for example.
func (s *Store) ContextPublisher() message.Publisher { return contextPublisher{s} }

var errNilTx = fmt.Errorf("postgres: the transaction is nil: %w", backends.ErrNoTransaction)

type publisher struct {
	store *Store
	mu    sync.Mutex
	to    func(ctx context.Context, rows []records.Row) error
}

// Publish implements message.Publisher.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to(msgs[0].Context(), rows)
}

// Close implements message.Publisher.
func (p *publisher) Close() error { return nil }

type contextPublisher struct{ store *Store }

// Publish implements message.Publisher.
func (p contextPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if msgs[0] == nil {
		_, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
		return err
	}
	to, err := p.store.txPublisher(msgs[0].Context())
	if err != nil {
		return err
	}
	return to.Publish(topic, msgs...)
}

// Close implements message.Publisher.
func (contextPublisher) Close() error { return nil }

type txKey struct{}

// txValue is a transaction in a context, with the store it is bound to if any.
type txValue struct {
	pgx   pgx.Tx
	sql   SQLTx
	store *Store
}

// WithTx puts a transaction into a context for [Store.ContextPublisher].
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{pgx: tx})
}

// WithSQLTx is [WithTx] for a database/sql transaction.
func WithSQLTx(ctx context.Context, tx SQLTx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{sql: tx})
}

// WithTx is [WithTx] for programs with several stores: another store's
// ContextPublisher refuses the transaction.
func (s *Store) WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{pgx: tx, store: s})
}

// WithSQLTx is [Store.WithTx] for a database/sql transaction.
func (s *Store) WithSQLTx(ctx context.Context, tx SQLTx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{sql: tx, store: s})
}

// TxFromContext returns the transaction that WithTx put into a context.
func TxFromContext(ctx context.Context) (pgx.Tx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	return v.pgx, v.pgx != nil
}

// SQLTxFromContext returns the transaction that WithSQLTx put into a context.
func SQLTxFromContext(ctx context.Context) (SQLTx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	return v.sql, v.sql != nil
}

func (s *Store) txPublisher(ctx context.Context) (message.Publisher, error) {
	v, _ := ctx.Value(txKey{}).(txValue)
	if v.store != nil && v.store != s {
		return nil, fmt.Errorf("postgres: the transaction is bound to another store: %w", backends.ErrNoTransaction)
	}
	switch {
	case v.pgx != nil:
		if err := s.sameDatabase(v.pgx); err != nil {
			return nil, err
		}
		return s.Publisher(v.pgx), nil
	case v.sql != nil:
		return s.SQLPublisher(v.sql), nil
	}
	return nil, fmt.Errorf("postgres: put one there by postgres.WithTx: %w", backends.ErrNoTransaction)
}

// sameDatabase refuses a transaction that plainly belongs elsewhere. It cannot
// tell two servers with a database of the same name apart: programs with
// several stores bind the transaction by [Store.WithTx].
func (s *Store) sameDatabase(tx pgx.Tx) (err error) {
	defer func() { // a transaction that has ended may have no connection
		if recover() != nil {
			err = mend(pgx.ErrTxClosed)
		}
	}()
	conn, want := tx.Conn(), s.conns.database()
	if conn == nil || want == "" || conn.Config().Database == want {
		return nil
	}
	return errors.Join(errors.New("postgres: the transaction is of another database than the store's"), backends.ErrNoTransaction)
}
