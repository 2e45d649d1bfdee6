// Package backends holds the contracts between Outmill's engines and the
// databases and brokers they work with, and the words that a user puts on a
// Watermill message.
//
// An [Outbox] is the database side: it hands out committed records in order and
// records what became of them. A [Broker] is the other side: it takes records
// and answers for each. The forwarder moves records from the one to the other
// and knows nothing else of either. Implementations live in
// backends/stores and backends/brokers; anyone may write another and run
// backends/storetest or backends/brokertest over it.
//
// # The words on a message
//
// [SetAggregate] names what a message's order is kept within, [SetSequence]
// supplies its number there when the application has one of its own. Both are
// kept in the message's metadata under reserved keys; everything else in the
// metadata is carried as it is.
//
// # What the two sides promise
//
// A record exists from the commit of the transaction that appended it until the
// broker's durable word for that very record has been settled. Within an
// aggregate and topic, records leave in the order in which their transactions
// held the aggregate's lock. A record may be sent more than once, never zero
// times, and a repeat never comes before a record that it follows.
package backends
