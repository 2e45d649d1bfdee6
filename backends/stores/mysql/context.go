package mysql

import "context"

type txKey struct{}

// txValue is a transaction in a context, with the store it is bound to if any.
type txValue struct {
	tx    Tx
	store *Store
}

// WithTx puts a transaction into a context for [Store.ContextPublisher].
func WithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx})
}

// WithTx is [WithTx] for programs with several stores: another store's
// ContextPublisher refuses the transaction.
func (s *Store) WithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx, store: s})
}

// TxFromContext returns the transaction that WithTx put into a context.
func TxFromContext(ctx context.Context) (Tx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	return v.tx, v.tx != nil
}
