// Package rabbitmq publishes to RabbitMQ by amqp091-go, with the wire format of
// watermill-amqp's default marshaler: its subscriber reads the messages
// unchanged. Exchange and routing key are found from the topic as by
// watermill-amqp's named configurations, see [Topology].
//
//	broker, err := rabbitmq.New(rabbitmq.Config{URL: "amqp://app:secret@localhost:5672/"})
//
// Messages are persistent and mandatory, each is confirmed by the server, and one
// that no queue gets is a failure. The client repeats nothing and never reconnects
// by itself: an answer that was lost is reported as unknown, and the next call has
// a new connection.
//
// # Order after a failure
//
// A server that refuses one message takes the next. So an aggregate's records go
// out one by one, each when the one before it is confirmed, while aggregates go
// side by side. docs/decisions/0009 says more.
package rabbitmq
