package tracing

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Telemetry makes spans and metrics of one outbox. It is safe for concurrent use.
type Telemetry struct {
	cfg      Config
	tracer   trace.Tracer
	carry    carry
	names    *destinations
	metrics  *instruments
	observer *observer
	plain    metric.MeasurementOption // outbox.name alone

	inFlight atomic.Int64 // records in forwarders' hands
	owned    atomic.Int64 // shards of this process's forwarders
	lastPoll atomic.Int64 // when a look for records ended, in Unix nanoseconds; 0: never
}

// New makes a Telemetry. It reports every fault of the configuration at once and
// starts nothing: table-wide metrics are read when metrics are collected.
func New(cfg Config) (*Telemetry, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Telemetry{
		cfg:    cfg,
		tracer: cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(schemaURL)),
		carry:  newCarry(cfg.Propagator, cfg.BaggageKeys),
	}
	t.plain = metric.WithAttributeSet(attribute.NewSet(t.outbox()))
	meter := cfg.MeterProvider.Meter(scope, metric.WithSchemaURL(schemaURL))
	var err error
	if t.metrics, err = newInstruments(meter); err != nil {
		return nil, err
	}
	t.names = newDestinations(cfg, t.metrics)
	t.observer = newObserver(t)
	if err := t.observer.register(meter); err != nil {
		return nil, err
	}
	return t, nil
}

// Close ends the reading of table-wide metrics. Call it before the store is
// closed. Spans and other metrics go on.
func (t *Telemetry) Close() error { return t.observer.unregister() }

// outbox is outbox.name.
func (t *Telemetry) outbox() attribute.KeyValue { return keyOutbox.String(t.cfg.Name) }

// outboxOnly are the attributes of what has no destination.
func (t *Telemetry) outboxOnly(errorType string) metric.MeasurementOption {
	if errorType == "" {
		return t.plain
	}
	return metric.WithAttributeSet(attribute.NewSet(t.outbox(), keyErrorType.String(errorType)))
}

// quiet returns a context in which instrumented drivers make no spans: that of a
// trace that is not sampled.
func quiet(ctx context.Context) context.Context {
	var cfg trace.SpanContextConfig
	for i := 0; i < len(cfg.TraceID); i += 8 {
		fill(cfg.TraceID[i:])
	}
	fill(cfg.SpanID[:])
	sc := trace.NewSpanContext(cfg)
	return trace.ContextWithSpanContext(context.WithValue(ctx, quietKey{}, sc), sc)
}

type quietKey struct{}

// isQuiet reports whether the span of ctx is one that quiet made up.
func isQuiet(ctx context.Context) bool {
	sc, ok := ctx.Value(quietKey{}).(trace.SpanContext)
	return ok && sc.Equal(trace.SpanContextFromContext(ctx))
}

// fill writes eight random bytes, not all zero.
func fill(b []byte) {
	n := rand.Uint64() | 1
	for i := range 8 {
		b[i] = byte(n >> (8 * i))
	}
}

// seconds is how durations are measured.
func seconds(d time.Duration) float64 { return d.Seconds() }

var errNilPublisher = errors.New("tracing: the publisher is nil")
