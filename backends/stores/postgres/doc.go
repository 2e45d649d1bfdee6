// Package postgres keeps an outbox in Postgres 13 or newer.
//
//	store, err := postgres.Open(ctx, url, postgres.Config{})
//	err = store.Migrate(ctx)
//
//	// in the business transaction, a pgx.Tx
//	err = store.Publisher(tx).Publish("orders", msg)
//
// Publishers take pgx and database/sql transactions. The forwarder's side uses
// pgx. Both work behind a pooler in transaction mode, see [Config.Pooler].
//
// # Order
//
// With sequences on, the row of outbox_sequences is a lock that a transaction
// holds on each aggregate it publishes for, from its first Publish to its end:
// order is exact, and two transactions for one aggregate wait for each other.
// A transaction that publishes for several aggregates in separate calls may
// deadlock with another that takes them in another order; in one call it does
// not. Under REPEATABLE READ and SERIALIZABLE, a transaction that meets a newer
// sequence fails with SQLSTATE 40001 and must be retried, as always there.
//
// # What it cannot do
//
// A business transaction committed with synchronous_commit off can be sent and
// then be lost in a crash of the server: no reader can prevent that.
package postgres
