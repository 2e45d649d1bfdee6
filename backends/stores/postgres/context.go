package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

type txKey struct{}

// txValue is a transaction in a context, with the store it is bound to if any.
type txValue struct {
	tx    any
	store *Store
}

// WithTx puts a transaction, a pgx.Tx or an [SQLTx] such as *sql.Tx, into a
// context for [Store.ContextPublisher]. Anything else is refused when something
// is published.
func WithTx(ctx context.Context, tx any) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx})
}

// WithTx is [WithTx] for programs with several stores: another store's
// ContextPublisher refuses the transaction.
func (s *Store) WithTx(ctx context.Context, tx any) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx, store: s})
}

// TxFromContext returns the pgx transaction that WithTx put into a context.
func TxFromContext(ctx context.Context) (pgx.Tx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	tx, ok := v.tx.(pgx.Tx)
	return tx, ok
}

// SQLTxFromContext returns the database/sql transaction that WithTx put into a
// context.
func SQLTxFromContext(ctx context.Context) (SQLTx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	tx, ok := v.tx.(SQLTx)
	return tx, ok
}

func (s *Store) txPublisher(ctx context.Context) message.Publisher {
	v, _ := ctx.Value(txKey{}).(txValue)
	if v.store != nil && v.store != s {
		return refusal{fmt.Errorf("postgres: the transaction is bound to another store: %w", backends.ErrNoTransaction)}
	}
	switch tx := v.tx.(type) {
	case nil:
		return refusal{fmt.Errorf("postgres: put one there by postgres.WithTx: %w", backends.ErrNoTransaction)}
	case pgx.Tx:
		if err := s.sameDatabase(tx); err != nil {
			return refusal{err}
		}
		return s.Publisher(tx)
	case SQLTx:
		return s.SQLPublisher(tx)
	default:
		return refusal{fmt.Errorf("postgres: a %T is no transaction that this store can use: pass a pgx.Tx or *sql.Tx: %w", tx, backends.ErrNoTransaction)}
	}
}

// sameDatabase refuses a transaction that plainly belongs elsewhere. It cannot
// tell two servers with a database of the same name apart, nor see where a
// database/sql transaction leads: programs with several stores bind the
// transaction by [Store.WithTx].
func (s *Store) sameDatabase(tx pgx.Tx) error {
	conn, want := connOf(tx), s.conns.database()
	if conn == nil || want == "" || conn.Config().Database == want {
		return nil
	}
	return errors.Join(errors.New("postgres: the transaction is of another database than the store's"), backends.ErrNoTransaction)
}

// connOf is the connection of a transaction. Some that have ended have none.
func connOf(tx pgx.Tx) (conn *pgx.Conn) {
	defer func() {
		if recover() != nil {
			conn = nil
		}
	}()
	return tx.Conn()
}
