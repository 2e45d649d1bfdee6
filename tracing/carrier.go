package tracing

import (
	"context"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// carry writes contexts into metadata and reads them from there.
type carry struct {
	propagator propagation.TextMapPropagator
	fields     []string // the propagator's keys
	baggage    []string // members that travel
}

func newCarry(p propagation.TextMapPropagator, baggageKeys []string) carry {
	return carry{propagator: p, fields: p.Fields(), baggage: baggageKeys}
}

// carrier reads and writes metadata. Keys that differ in case only are one key.
type carrier message.Metadata

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if v, ok := c[key]; ok {
		return v
	}
	for k, v := range c {
		if strings.EqualFold(k, key) {
			return v
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { c[key] = value }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// creation returns the context that a message carries, which is invalid where it
// carries none or a malformed one.
func (c carry) creation(md message.Metadata) trace.SpanContext {
	if len(md) == 0 {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(c.propagator.Extract(context.Background(), carrier(md)))
}

// settle leaves each of the propagator's keys once, in the propagator's own case:
// readers of most brokers know no other.
func (c carry) settle(md message.Metadata) {
	for k, v := range md {
		i := slices.IndexFunc(c.fields, func(f string) bool { return f != k && strings.EqualFold(f, k) })
		if i < 0 {
			continue
		}
		delete(md, k)
		if _, there := md[c.fields[i]]; !there {
			md[c.fields[i]] = v
		}
	}
}

// inject writes the context of a span, and the baggage that travels. It returns
// what takes it off again.
func (c carry) inject(ctx context.Context, msg *message.Message) (undo func()) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	before := make(map[string]string, len(c.fields)+1)
	keys := append(slices.Clone(c.fields), baggageKey)
	for _, k := range keys {
		if v, there := msg.Metadata[k]; there {
			before[k] = v
		}
	}
	for _, f := range c.fields { // what is left of a malformed context
		delete(msg.Metadata, f)
	}
	c.propagator.Inject(ctx, carrier(msg.Metadata))
	c.injectBaggage(ctx, msg.Metadata)
	return func() {
		for _, k := range keys {
			delete(msg.Metadata, k)
			if v, there := before[k]; there {
				msg.Metadata[k] = v
			}
		}
	}
}

func (c carry) injectBaggage(ctx context.Context, md message.Metadata) {
	if len(c.baggage) == 0 || md[baggageKey] != "" {
		return
	}
	all := baggage.FromContext(ctx)
	var kept []baggage.Member
	for _, key := range c.baggage {
		if m := all.Member(key); m.Key() != "" {
			kept = append(kept, m)
		}
	}
	if some, err := baggage.New(kept...); err == nil && some.Len() > 0 {
		md[baggageKey] = some.String()
	}
}

// traceparent is the W3C form of a span's context, whatever the propagator.
func traceparent(sc trace.SpanContext) string {
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), c)
	return c["traceparent"]
}

// replayOf returns the replay that published a message again, if one did.
func replayOf(md message.Metadata) (sc trace.SpanContext, replayed bool) {
	if parent := md[ReplayContextKey]; parent != "" {
		c := propagation.MapCarrier{"traceparent": parent}
		sc = trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), c))
	}
	return sc, sc.IsValid() || md[ReplayedKey] == "true"
}
