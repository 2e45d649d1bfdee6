// Package middleware holds decorators for Watermill publishers that make
// publishing to an outbox safer. Each checks or completes a message before it
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
