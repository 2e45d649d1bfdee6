package postgres

import (
	"context"
	"database/sql"
	"fmt"

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
// Calls for one transaction are serialised, whatever publisher they are made on.
// A transaction must not be used by several goroutines in any other way.
func (s *Store) Publisher(tx pgx.Tx) message.Publisher {
	if tx == nil {
		return refusal{errNilTx}
	}
	return publisher{store: s, tx: tx, to: func(ctx context.Context, rows []records.Row) error {
		return s.append(ctx, tx, rows)
	}}
}

// SQLPublisher is [Store.Publisher] for a database/sql transaction, of whatever
// driver. A *sql.DB, which would take each statement as a transaction of its
// own, is refused by Publish.
func (s *Store) SQLPublisher(tx SQLTx) message.Publisher {
	if std, ok := tx.(*sql.Tx); tx == nil || ok && std == nil {
		return refusal{errNilTx}
	}
	if _, ok := tx.(beginner); ok {
		return refusal{fmt.Errorf("postgres: a %T is not a transaction: begin one and pass that: %w", tx, backends.ErrNoTransaction)}
	}
	return publisher{store: s, tx: tx, to: func(ctx context.Context, rows []records.Row) error {
		return s.appendSQL(ctx, tx, rows)
	}}
}

// beginner is a handle that begins transactions and therefore is none.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// ContextPublisher returns a publisher that takes its transaction from the
// context of each call's first message: what [WithTx] put there.
// Without one, or with one of another database, Publish gives
// [backends.ErrNoTransaction]. It is safe for concurrent use, so one may serve a
// whole program, as the publisher of a cqrs.EventBus for example.
func (s *Store) ContextPublisher() message.Publisher { return contextPublisher{s} }

var errNilTx = fmt.Errorf("postgres: the transaction is nil: %w", backends.ErrNoTransaction)

type publisher struct {
	store *Store
	tx    any
	to    func(ctx context.Context, rows []records.Row) error
}

// Publish implements message.Publisher.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	defer p.store.inUse.lock(p.tx)()
	return p.to(msgs[0].Context(), rows)
}

// Close implements message.Publisher.
func (p publisher) Close() error { return nil }

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
	return p.store.txPublisher(msgs[0].Context()).Publish(topic, msgs...)
}

// Close implements message.Publisher.
func (contextPublisher) Close() error { return nil }

// refusal is a publisher that cannot publish.
type refusal struct{ err error }

// Publish implements message.Publisher.
func (r refusal) Publish(_ string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	return r.err
}

// Close implements message.Publisher.
func (refusal) Close() error { return nil }
