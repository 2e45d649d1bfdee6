package tracing

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"
)

// Replay marks messages that are to be published again, long after their first
// time, and makes a span for that. kind says in a word or two how they were
// chosen: it is on the span, so it must hold no ids and no personal data.
//
// Their creation contexts stay. Forwarder and consumer only link to them: a
// replay of last month's messages does not append to last month's traces.
// Call end when they have been published, with the error if that failed.
func (t *Telemetry) Replay(ctx context.Context, kind string, msgs ...*message.Message) (_ context.Context, end func(error)) {
	ctx, span := t.tracer.Start(ctx, "replay "+t.cfg.Name, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(t.outbox(), keyReplayKind.String(kind), keyReplayCount.Int(len(msgs))))
	for _, msg := range msgs {
		if msg == nil {
			continue
		}
		if msg.Metadata == nil {
			msg.Metadata = message.Metadata{}
		}
		msg.Metadata[ReplayedKey] = "true"
		delete(msg.Metadata, ReplayContextKey)
		if sc := span.SpanContext(); sc.IsValid() {
			msg.Metadata[ReplayContextKey] = traceparent(sc)
		}
	}
	return ctx, func(err error) {
		if err == nil {
			t.metrics.replayed.Add(ctx, int64(len(msgs)), t.plain)
		}
		created{span: span}.end(err, t.errorType(err))
	}
}
