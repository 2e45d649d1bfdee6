package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/tracing"
)

// world is an outbox with its telemetry, a recorder of spans and a reader of
// metrics, in a bubble of its own time.
type world struct {
	*testing.T
	store  *memory.Store
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // the business's own
	reader *sdkmetric.ManualReader
	tel    *tracing.Telemetry
	broker *broker
	logs   logs
}

type option func(*tracing.Config)

// sampledBy replaces the sampler, for the business too.
func sampledBy(s sdktrace.Sampler) option {
	return func(c *tracing.Config) { c.TracerProvider.(*sampled).sampler = sdktrace.ParentBased(s) }
}

// sampled asks a sampler that can be replaced.
type sampled struct {
	trace.TracerProvider
	sampler sdktrace.Sampler
}

func (s *sampled) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return s.sampler.ShouldSample(p)
}
func (s *sampled) Description() string { return "replaceable" }

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, run func(w *world), opts ...option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), broker: &broker{}}
		var err error
		w.store, err = memory.New(memory.Config{})
		require.NoError(t, err)
		tp := &sampled{sampler: sdktrace.ParentBased(sdktrace.AlwaysSample())}
		tp.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans), sdktrace.WithSampler(tp))
		w.tracer = tp.Tracer("business")
		cfg := tracing.Config{
			System: "kafka", Outbox: w.store, TracerProvider: tp,
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)),
			Logger:        w.logger(),
		}
		for _, o := range opts {
			o(&cfg)
		}
		w.tel, err = tracing.New(cfg)
		require.NoError(t, err)
		run(w)
		require.NoError(t, w.tel.Close())
	})
}

func (w *world) logger() *slog.Logger {
	return slog.New(tracing.LogHandler(slog.NewTextHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelDebug - 4})))
}

// logs collects what is logged.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// request is a business request that publishes.
func (w *world) request(name, topic string, msgs ...*message.Message) context.Context {
	w.Helper()
	ctx, span := w.tracer.Start(w.Context(), name, trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	tx := w.store.Begin()
	require.NoError(w, w.tel.PublisherIn(ctx, w.store.Publisher(tx)).Publish(topic, msgs...))
	require.NoError(w, tx.Commit())
	return ctx
}

func msg(id string) *message.Message { return message.NewMessage(id, []byte("payload")) }

func of(aggregate string, m *message.Message) *message.Message {
	backends.SetAggregate(m, aggregate)
	return m
}

// forward runs a forwarder for so long.
func (w *world) forward(d time.Duration, change ...func(*forwarder.Config)) {
	w.Helper()
	cfg := forwarder.Config{Workers: 1, Name: "test", Hooks: w.tel.Forwarder(), Logger: w.logger()}
	for _, c := range change {
		c(&cfg)
	}
	f, err := forwarder.New(w.store, w.broker, cfg)
	require.NoError(w, err)
	ctx, stop := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	<-time.After(d)
	stop()
	require.NoError(w, <-done)
}

// broker answers as say does, and keeps what it accepted.
type broker struct {
	mu       sync.Mutex
	say      func(try int, r backends.Record) error
	tries    map[string]int
	accepted []*message.Message
	contexts []context.Context
}

func (b *broker) Publish(ctx context.Context, records []backends.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tries == nil {
		b.tries = map[string]int{}
	}
	b.contexts = append(b.contexts, ctx)
	out := &backends.PartialError{}
	for i := range records {
		r := records[i]
		b.tries[r.MessageID]++
		if b.say != nil {
			if err := b.say(b.tries[r.MessageID], r); err != nil {
				out.Failures = append(out.Failures, backends.Failure{Index: i, State: backends.Rejected, Err: err})
				continue
			}
		}
		b.accepted = append(b.accepted, r.Message().Copy())
	}
	if len(out.Failures) > 0 {
		return out
	}
	return nil
}

func (b *broker) Close(context.Context) error { return nil }

var errTry = errors.New("try again")

// golden compares the spans that ended with what is expected, one line each in
// the order they began:
//
//	name KIND < parent [links] attributes
func (w *world) golden(want string) {
	w.Helper()
	var lines []string
	for _, l := range strings.Split(want, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	require.Equal(w, strings.Join(lines, "\n"), strings.Join(w.lines(), "\n"))
}

// lines shows spans. A span is named by its name, with a number where several
// have it.
func (w *world) lines() []string {
	ended := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range w.spans.Ended() {
		ended[s.SpanContext().SpanID()] = s
	}
	var spans []sdktrace.ReadOnlySpan
	for _, s := range w.spans.Started() {
		if s := ended[s.SpanContext().SpanID()]; s != nil {
			spans = append(spans, s)
		}
	}
	names := map[trace.SpanID]string{}
	seen := map[string]int{}
	for _, s := range spans {
		seen[s.Name()]++
		names[s.SpanContext().SpanID()] = s.Name()
		if n := seen[s.Name()]; n > 1 {
			names[s.SpanContext().SpanID()] = fmt.Sprintf("%s#%d", s.Name(), n)
		}
	}
	var out []string
	for _, s := range spans {
		out = append(out, line(s, names))
	}
	return out
}

func line(s sdktrace.ReadOnlySpan, names map[trace.SpanID]string) string {
	parent := "-"
	if s.Parent().IsValid() {
		if parent = names[s.Parent().SpanID()]; parent == "" {
			parent = "elsewhere"
		}
	}
	var links []string
	for _, l := range s.Links() {
		name := names[l.SpanContext.SpanID()]
		if name == "" {
			name = "elsewhere"
		}
		links = append(links, value(l.Attributes, "outbox.link.type")+": "+name)
	}
	text := fmt.Sprintf("%s %s < %s [%s]", names[s.SpanContext().SpanID()], s.SpanKind(), parent, strings.Join(links, ", "))
	for _, key := range []string{
		"outbox.outcome", "error.type", "outbox.publish.attempt", "messaging.batch.message_count",
		"outbox.batch.claimed", "outbox.batch.published", "outbox.batch.failed", "outbox.replayed",
	} {
		if v := value(s.Attributes(), attribute.Key(key)); v != "" {
			text += " " + key[strings.LastIndexByte(key, '.')+1:] + "=" + v
		}
	}
	if s.Status().Code == codes.Error {
		text += " ERROR"
	}
	return text
}

func value(attrs []attribute.KeyValue, key attribute.Key) string {
	for _, a := range attrs {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// span returns the only span of a name.
func (w *world) span(name string) sdktrace.ReadOnlySpan {
	w.Helper()
	var found []sdktrace.ReadOnlySpan
	for _, s := range w.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	require.Len(w, found, 1, name)
	return found[0]
}

// metrics collects what is measured, by instrument.
func (w *world) metrics() map[string]metricdata.Metrics {
	w.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(w, w.reader.Collect(context.WithoutCancel(w.Context()), &rm))
	out := map[string]metricdata.Metrics{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			out[m.Name] = m
		}
	}
	return out
}

type attrValue = attribute.Value

// withTraffic keeps the broker busy beside the test's own messages, so that a
// message that fails is itself to blame.
func withTraffic(w *world) func(*forwarder.Config) {
	return func(*forwarder.Config) {
		go func() {
			for i := range 100 {
				<-time.After(150 * time.Millisecond)
				tx := w.store.Begin()
				_ = w.store.Publisher(tx).Publish("others", msg(fmt.Sprintf("other-%d", i)))
				_ = tx.Commit()
			}
		}()
	}
}
