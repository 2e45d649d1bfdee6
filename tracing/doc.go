// Package tracing shows what Outmill does, by OpenTelemetry: one trace from the
// business transaction to the handler, and metrics of what waits, flows and
// fails. It is the only package that knows OpenTelemetry, and it uses the API
// alone: without an SDK it costs next to nothing and writes nothing.
//
//	tel, err := tracing.New(tracing.Config{Outbox: store})
//	err = tel.Publisher(store.Publisher(tx)).Publish("orders", msg)
//	fwd, err := forwarder.New(store, broker, forwarder.Config{Hooks: tel.Forwarder()})
//
// # What is in a trace
//
// The publisher makes a span "create orders" for each message, below the span of
// the business request, and writes its context into the message's metadata, as
// traceparent and tracestate. That is the message's creation context. It is
// stored with the message, sent with it and never rewritten: not by retries,
// not by dead letters, not by replays.
//
// The forwarder makes a root span "forwarder outbox" for what it read together,
// and a span "publish orders" for what it sends. Each publish span links to the
// creation contexts of its messages. For a message that goes alone, at its first
// attempt, within Config.ContinueWindow, the creation context is the parent as
// well, so the trace goes on; what is late, tried again, replayed or sent
// together with others is in the trace of the forwarder. Looks that find nothing
// make no spans.
//
// # What is never told
//
// Payloads, metadata (but for the trace's own keys and correlation_id), SQL
// arguments, addresses and error texts are on no span and no metric. Aggregates
// are on spans only if Config.Aggregates says so.
package tracing
