package tracing_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/tracing"
)

// A request that is not sampled still gives its messages a context, so that what
// follows is of one trace, and not sampled either.
func TestPublisher_NotSampled(t *testing.T) {
	inWorld(t, func(w *world) {
		m := msg("1")
		ctx := w.request("POST /orders", "orders", m)
		w.forward(time.Second)
		request := trace.SpanContextFromContext(ctx)
		require.False(w, request.IsSampled())
		require.Regexp(w, "^00-"+request.TraceID().String()+"-[0-9a-f]{16}-00$", m.Metadata["traceparent"])
		require.Equal(w, m.Metadata["traceparent"], w.broker.accepted[0].Metadata["traceparent"])
		require.Equal(w, []string{"forwarder outbox internal < - [] claimed=1 published=1 failed=0"}, w.lines(),
			"the forwarder's own root is sampled on its own")
	}, sampledBy(unsampledRequests{}))
}

// unsampledRequests drops what is not the forwarder's own.
type unsampledRequests struct{}

func (unsampledRequests) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := sdktrace.SamplingResult{Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if p.Name == "forwarder outbox" {
		r.Decision = sdktrace.RecordAndSample
	}
	return r
}
func (unsampledRequests) Description() string { return "unsampled requests" }

// Without an SDK nothing is written, and everything else goes on.
func TestPublisher_NoSDK(t *testing.T) {
	inWorld(t, func(w *world) {
		tel, err := tracing.New(tracing.Config{Outbox: w.store, TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
		require.NoError(w, err)
		w.tel = tel
		bad := msg("2")
		w.broker.say = func(_ int, r backends.Record) error {
			if r.MessageID == "2" {
				return backends.Permanent(errTry)
			}
			return nil
		}
		m := msg("1")
		tx := w.store.Begin()
		require.NoError(w, tel.Publisher(w.store.Publisher(tx)).Publish("orders", m, bad))
		require.NoError(w, tx.Commit())
		w.forward(time.Second)
		require.Empty(w, m.Metadata)
		require.Len(w, w.broker.accepted, 1)
		require.Empty(w, w.broker.accepted[0].Metadata["traceparent"])
	})
}

// Where others trace and this service does not, their context goes through.
func TestPublisher_NoSDKPassesARemoteContextOn(t *testing.T) {
	tel, err := tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	require.NoError(t, err)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent})
	m := msg("1")
	require.NoError(t, tel.PublisherIn(ctx, &sink{}).Publish("orders", m))
	require.Equal(t, parent, m.Metadata["traceparent"])
}

// A context that the user put there is kept, byte for byte, with no span.
func TestPublisher_AContextSetByTheUserIsKept(t *testing.T) {
	inWorld(t, func(w *world) {
		m := msg("1")
		m.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		m.Metadata["tracestate"] = "vendor=value"
		m.Metadata["baggage"] = "user=set"
		w.request("POST /orders", "orders", m)
		w.forward(time.Second)
		got := w.broker.accepted[0].Metadata
		require.Equal(w, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", got["traceparent"])
		require.Equal(w, "vendor=value", got["tracestate"])
		require.Equal(w, "user=set", got["baggage"])
		w.golden(`
			POST /orders server < - []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < elsewhere [creation: elsewhere, forwarder_batch: forwarder outbox] outcome=delivered attempt=1
		`)
	})
}

// Keys that differ in case only are one key, and readers find it in lower case.
func TestPublisher_OneTraceparentWhateverItsCase(t *testing.T) {
	tel, err := tracing.New(tracing.Config{TracerProvider: sdktrace.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	require.NoError(t, err)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, md := range map[string]message.Metadata{
		"other case": {"Traceparent": parent, "TraceState": "a=b"},
		"both":       {"traceparent": parent, "TRACEPARENT": "00-malformed", "tracestate": "a=b"},
	} {
		m := msg("1")
		m.Metadata = md
		for range 3 {
			require.NoError(t, tel.Publisher(&sink{}).Publish("orders", m), name)
		}
		require.Equal(t, message.Metadata{"traceparent": parent, "tracestate": "a=b"}, m.Metadata, name)
	}
	malformed := msg("2")
	malformed.Metadata["traceparent"] = "00-malformed"
	require.NoError(t, tel.Publisher(&sink{}).Publish("orders", malformed))
	require.Regexp(t, "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$", malformed.Metadata["traceparent"])
}

// A cqrs.EventBus hands its context on with the message: that is enough.
func TestPublisher_EventBus(t *testing.T) {
	inWorld(t, func(w *world) {
		tx := w.store.Begin()
		bus, err := cqrs.NewEventBusWithConfig(w.tel.Publisher(w.store.Publisher(tx)), cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
			Marshaler:            cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		})
		require.NoError(w, err)
		ctx, span := w.tracer.Start(w.Context(), "POST /orders", trace.WithSpanKind(trace.SpanKindServer))
		require.NoError(w, bus.Publish(ctx, OrderPlaced{ID: 1}))
		require.NoError(w, tx.Commit())
		span.End()
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			create OrderPlaced producer < POST /orders []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish OrderPlaced client < create OrderPlaced [creation: create OrderPlaced, forwarder_batch: forwarder outbox] outcome=delivered attempt=1
		`)
	})
}

type OrderPlaced struct{ ID int }

// What cannot be stored is marked, and can be published again as if it were new.
func TestPublisher_AFailureLeavesNoTrace(t *testing.T) {
	inWorld(t, func(w *world) {
		m := msg("1")
		m.Metadata["tracestate"] = "malformed" // no context without a traceparent
		before := maps.Clone(m.Metadata)
		s := &sink{err: errors.New("disk full")}
		require.ErrorIs(w, w.tel.Publisher(s).Publish("orders", m), s.err)
		require.Equal(w, before, m.Metadata)
		w.golden(`create orders producer < - [] type=_OTHER ERROR`)
		require.NoError(w, w.tel.Publisher(&sink{}).Publish("orders", m))
		require.NotEmpty(w, m.Metadata["traceparent"])
	})
}

// The database's own span is below that of the message, and the message's
// context is the caller's again afterwards.
func TestPublisher_TheContextIsGivenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		type key struct{}
		m := msg("1")
		m.SetContext(context.WithValue(w.Context(), key{}, "kept"))
		s := &sink{}
		require.NoError(w, w.tel.Publisher(s).Publish("orders", m))
		require.Equal(w, "kept", s.ctx.Value(key{}))
		require.Equal(w, w.span("create orders").SpanContext(), trace.SpanContextFromContext(s.ctx))
		require.False(w, trace.SpanContextFromContext(m.Context()).IsValid())
	})
}

// Each message of a call has a context of its own.
func TestPublisher_EachMessageItsOwn(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := msg("1"), msg("2")
		w.request("POST /orders", "orders", a, b)
		require.NotEqual(w, a.Metadata["traceparent"], b.Metadata["traceparent"])
		w.golden(`
			POST /orders server < - []
			create orders producer < POST /orders []
			create orders#2 producer < POST /orders []
		`)
		var fault *backends.MessageError
		require.ErrorAs(w, w.tel.Publisher(w.store.Publisher(w.store.Begin())).Publish("orders", nil, msg("3")), &fault)
	})
}

func TestPublisher_NoCreateSpans(t *testing.T) {
	inWorld(t, func(w *world) {
		m := msg("1")
		ctx := w.request("POST /orders", "orders", m)
		require.Equal(w, traceparentOf(trace.SpanContextFromContext(ctx)), m.Metadata["traceparent"])
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < POST /orders [creation: POST /orders, forwarder_batch: forwarder outbox] outcome=delivered attempt=1
		`)
	}, func(c *tracing.Config) { c.NoCreateSpans = true })
}

// Of the baggage only what was named travels.
func TestPublisher_BaggageByName(t *testing.T) {
	region, err := baggage.NewMember("region", "eu")
	require.NoError(t, err)
	user, err := baggage.NewMember("user", "secret")
	require.NoError(t, err)
	bag, err := baggage.New(region, user)
	require.NoError(t, err)
	ctx := baggage.ContextWithBaggage(t.Context(), bag)
	for want, keys := range map[string][]string{"": nil, "region=eu": {"region", "absent"}} {
		tel, err := tracing.New(tracing.Config{
			TracerProvider: sdktrace.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(), BaggageKeys: keys,
		})
		require.NoError(t, err)
		m := msg("1")
		require.NoError(t, tel.PublisherIn(ctx, &sink{}).Publish("orders", m))
		require.Equal(t, want, m.Metadata["baggage"])
	}
}

// Another propagator's keys travel in place of W3C's.
func TestPublisher_AnotherPropagator(t *testing.T) {
	inWorld(t, func(w *world) {
		m := msg("1")
		w.request("POST /orders", "orders", m)
		require.Empty(w, m.Metadata["traceparent"])
		require.NotEmpty(w, m.Metadata["x-span"])
		w.forward(time.Second)
		require.Equal(w, m.Metadata["x-span"], w.broker.accepted[0].Metadata["x-span"])
		require.Equal(w, w.span("create orders").SpanContext().SpanID(), w.span("publish orders").Parent().SpanID())
	}, func(c *tracing.Config) { c.Propagator = own{} })
}

// own is a propagator with a key of its own.
type own struct{}

func (own) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	w3c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, w3c)
	if v := w3c["traceparent"]; v != "" {
		c.Set("x-span", v)
	}
}

func (own) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Get("x-span")})
}
func (own) Fields() []string { return []string{"x-span"} }

func TestPublisher_NilAndEmpty(t *testing.T) {
	tel, err := tracing.New(tracing.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, tel.Publisher(nil).Publish("orders", msg("1")), "nil")
	require.NoError(t, tel.Publisher(nil).Close())
	s := &sink{}
	require.NoError(t, tel.Publisher(s).Publish("orders"))
	require.NoError(t, tel.Publisher(s).Publish("orders", &message.Message{UUID: "1"}))
}

func TestNew_ReportsEveryFaultAtOnce(t *testing.T) {
	long := string(make([]byte, 256))
	_, err := tracing.New(tracing.Config{Name: long, System: long, BaggageKeys: []string{"a", ""}})
	for _, field := range []string{"Name", "System", "BaggageKeys[1]"} {
		require.ErrorContains(t, err, field)
	}
}

// sink is a publisher that stores nothing.
type sink struct {
	err error
	ctx context.Context
}

func (s *sink) Publish(_ string, msgs ...*message.Message) error {
	if len(msgs) > 0 {
		s.ctx = msgs[0].Context()
	}
	return s.err
}
func (s *sink) Close() error { return nil }
