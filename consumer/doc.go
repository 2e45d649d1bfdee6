// Package consumer handles messages once per inbox: what was received, what the
// handler writes to the database and what it publishes are committed together,
// in order within an aggregate.
//
//	inbox, err := consumer.New(store, consumer.Config{Name: "billing"})
//	handler.AddMiddleware(middleware.Inbox(inbox)) // of a Watermill router
//	go inbox.Run(ctx)
//
// A delivery is one transaction: the aggregate's row is locked, the message's id
// is marked, the handler runs with the transaction in its context, what it
// published and returned is appended to the outbox, all is committed, and then
// the message is acked. A message that was handled before is acked without the
// handler. What a handler does outside the transaction, such as a call over
// HTTP, may happen more than once.
//
// Messages that come before their predecessors wait in a buffer (see [Policy]).
// [Consumer.Run] must run somewhere: it handles what waits there when the
// predecessor came to another process, when a handler failed or a process died,
// and it ends gaps. A Consumer whose Run does not run says so in its log.
//
// A message whose handler keeps failing becomes a dead letter; its aggregate is
// parked with it, so that nothing overtakes it, until an operator requeues or
// discards it ([Consumer.DeadLetters]).
package consumer
