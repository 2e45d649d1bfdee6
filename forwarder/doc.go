// Package forwarder moves records from an outbox to a broker, in order within an
// aggregate, with any number of forwarders over one outbox.
//
//	fwd, err := forwarder.New(store, broker, forwarder.Config{})
//	err = fwd.Run(ctx) // blocks; cancel ctx to stop
//
// # How it works
//
// Forwarders share the shards of an outbox by leases. In each, a few workers own
// disjoint shards and repeat one turn: read what is due, publish it, settle the
// outcome. No transaction is open while the broker works, so a broker that is
// slow or gone never holds up a business transaction.
//
// # What becomes of a failure
//
//	permanent    the record is given up at once: Park, Skip or Block
//	retryable    an attempt; its aggregate waits for the next, then is given up
//	unavailable  no attempt; a breaker holds the topic back and probes it
//	unknown      no attempt; sent again
//
// A retryable error counts as unavailable while nothing reaches the broker: a
// broker that refuses everything is out of order, not its records.
//
// # What it does not do
//
// It sends at least once: after a crash between the broker's word and the settle
// a record is sent again. It keeps order within an aggregate and topic; across
// the topics of one aggregate only while no topic is held back.
package forwarder
