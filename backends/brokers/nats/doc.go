// Package nats publishes to NATS JetStream by nats.go, with the wire format of
// watermill-nats' NATS marshaler, the default of its JetStream part: its
// subscribers read the records unchanged. The subject is the topic.
//
//	broker, err := nats.New(nats.Config{Servers: []string{"nats://localhost:4222"}})
//
// Records are published side by side, of each aggregate one at a time: the next
// goes when the server has acknowledged the one before it. Each carries a
// message id that names the row, so that the server drops what it gets twice
// within the stream's duplicate window (two minutes by default).
//
// It creates no stream. An acknowledgement is as durable as the stream's storage:
// by default a server writes to its disk's cache and syncs every two minutes
// (sync_interval), so one that stands alone may lose acknowledged records when
// its machine does. Have three replicas, or set sync_interval: always.
package nats
