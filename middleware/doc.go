// Package middleware holds Watermill middlewares: [Inbox] for a router's handlers,
// and decorators for publishers that make publishing to an outbox safer. Each
// of those checks or completes a message before it
// reaches the publisher underneath, so a fault costs nothing but an error: the
// transaction stays usable.
//
//	pub := middleware.Aggregate(store.Publisher(tx), func(topic string, msg *message.Message) (string, error) {
//		return msg.Metadata.Get("order_id"), nil
//	})
//
// They may be stacked in any order; the outermost sees a message first. A
// decorator passes Close on.
package middleware
