// Package mysql keeps an outbox in MySQL 8.4 or newer, or in MariaDB 10.6 or
// newer.
//
//	store, err := mysql.Open(ctx, "user:password@tcp(host:3306)/shop", mysql.Config{})
//	err = store.Migrate(ctx)
//
//	// in the business transaction, a *sql.Tx
//	err = store.Publisher(tx).Publish("orders", msg)
//
// # What it asks of a connection
//
// Nothing: sql_mode, time zone, character set, isolation level and the driver's
// parseTime, loc, interpolateParams and clientFoundRows may be anything. Only
// autocommit must be on. interpolateParams=true saves a round trip for each
// statement; Open sets it where the DSN does not say.
//
// # Order
//
// With sequences on, the row of outbox_sequences is a lock that a transaction
// holds on each aggregate it publishes for, from its first Publish to its end:
// order is exact, and two transactions for one aggregate wait for each other.
// A transaction that publishes for several aggregates in separate calls may
// deadlock with another that takes them in another order; in one call it does
// not. MariaDB with innodb_snapshot_isolation (the default from 11.6.2) under
// REPEATABLE READ answers error 1020 to a transaction that meets a sequence
// newer than its snapshot: it must be retried.
//
// # What to know
//
// Publish sets the connection's LAST_INSERT_ID(). After a deadlock (error 1213)
// the server has rolled the whole transaction back and takes what follows as
// transactions of their own: roll back after any error that is not a
// [backends.MessageError].
//
// With innodb_flush_log_at_trx_commit other than 1, a business transaction can
// be sent and then be lost in a crash of the server: no reader can prevent that.
// Write to one node of a cluster: ids of several nodes are not in one order.
package mysql
