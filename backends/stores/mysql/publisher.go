package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Tx is what a publisher needs of a transaction: *sql.Tx and *sqlx.Tx have it,
// and so do the handles of most mappers.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Publisher returns a Watermill publisher that appends to the outbox in a
// transaction, which stays the caller's to commit or roll back. It is cheap:
// make one for each transaction. Close does nothing.
//
// Publish appends all messages of a call in their order, or none, and touches
// nothing but the outbox. A message that cannot be stored gives an error that
// joins a [backends.MessageError] for each fault, before anything is sent: the
// transaction stays usable. After an error of the database, roll back.
//
// Calls for one transaction are serialised, whatever publisher they are made on.
// A transaction must not be used by several goroutines in any other way.
//
// A *sql.DB or *sql.Conn, whose statements are transactions of their own, is
// refused by Publish.
func (s *Store) Publisher(tx Tx) message.Publisher { return publisher{store: s, tx: tx} }

// ContextPublisher returns a publisher that takes its transaction from the
// context of each call's first message: what [WithTx] put there. Without one, or
// with one bound to another store, Publish gives [backends.ErrNoTransaction]. It
// is safe for concurrent use, so one may serve a whole program, as the publisher
// of a cqrs.EventBus for example.
func (s *Store) ContextPublisher() message.Publisher { return contextPublisher{s} }

type publisher struct {
	store *Store
	tx    Tx
}

// beginner is a handle that begins transactions and therefore is none.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Publish implements message.Publisher.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	if tx, ok := p.tx.(*sql.Tx); p.tx == nil || ok && tx == nil {
		return fmt.Errorf("mysql: the transaction is nil: %w", backends.ErrNoTransaction)
	}
	if _, ok := p.tx.(beginner); ok {
		return fmt.Errorf("mysql: a %T is not a transaction: begin one and pass that: %w", p.tx, backends.ErrNoTransaction)
	}
	defer p.store.inUse.lock(p.tx)()
	return mend(p.store.append(msgs[0].Context(), p.tx, rows))
}

// Close implements message.Publisher.
func (publisher) Close() error { return nil }

type contextPublisher struct{ store *Store }

// Publish implements message.Publisher.
func (p contextPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 || msgs[0] == nil {
		_, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
		return err
	}
	v, _ := msgs[0].Context().Value(txKey{}).(txValue)
	switch {
	case v.tx == nil:
		return fmt.Errorf("mysql: put one there by mysql.WithTx: %w", backends.ErrNoTransaction)
	case v.store != nil && v.store != p.store:
		return fmt.Errorf("mysql: the transaction is bound to another store: %w", backends.ErrNoTransaction)
	}
	return p.store.Publisher(v.tx).Publish(topic, msgs...)
}

// Close implements message.Publisher.
func (contextPublisher) Close() error { return nil }
