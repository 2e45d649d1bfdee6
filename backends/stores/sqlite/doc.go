// Package sqlite keeps an outbox in a SQLite database, without cgo.
//
//	store, err := sqlite.Open(ctx, "shop.db", sqlite.Config{})
//	err = store.Migrate(ctx)
//	tx, err := store.DB().BeginTx(ctx, nil)
//	err = store.Publisher(tx).Publish("orders", msg)
//
// # One writer
//
// SQLite lets one transaction write at a time. Open sets a database up for that:
// a write-ahead log, transactions that take the write lock when they begin, a
// wait of five seconds for it, and one connection for all writing, which
// [Store.DB] shares with the application. A second connection made elsewhere
// waits for the lock by polling, fifty times slower; and a transaction that
// begins with a read and writes later is refused whenever another has written
// in between, whatever the wait.
//
// While a transaction of DB is open, any other use of DB waits for its end, also
// in the same goroutine.
//
// # Durability
//
// Commits are flushed to disk (synchronous FULL). With NORMAL a power cut may
// take the last ones back, after they were sent.
package sqlite
