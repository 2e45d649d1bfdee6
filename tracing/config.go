package tracing

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
)

// Config sets a Telemetry up. Its zero value works.
type Config struct {
	// Name tells this outbox from others, as outbox.name on spans and metrics.
	// Default: "outbox".
	Name string

	// System is the broker's name as the conventions have it: "kafka", "rabbitmq",
	// "nats", "redis". Default: "outbox".
	System string

	// Outbox is what table-wide metrics are read from: at most once every 15
	// seconds, when metrics are collected. Default: there are none.
	Outbox backends.Outbox

	// TracerProvider and MeterProvider. Default: the global ones.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// Propagator writes a creation context into metadata and reads it from there.
	// Default: W3C Trace Context. Not the global one, which usually writes baggage.
	Propagator propagation.TextMapPropagator

	// BaggageKeys are the members of the baggage that go with a message. They are
	// stored, and sent to every subscriber. Default: none.
	BaggageKeys []string

	// NoCreateSpans leaves out the span for each message: the context of the
	// business request itself becomes the creation context.
	NoCreateSpans bool

	// NoBatchSpans leaves out the span for what a forwarder read together. What
	// would be below it is then a root.
	NoBatchSpans bool

	// ContinueWindow is up to what age a message's trace goes on in the forwarder.
	// Negative: never. Default: 30 s, which is how long collectors usually wait
	// before they decide on a trace.
	ContinueWindow time.Duration

	// Destination names a topic in span names and metrics, where topics hold ids:
	// "orders.{id}" for "orders.42". Empty: the topic itself. Without it, topics
	// beyond the first 200 count as "_other".
	Destination func(topic string) string

	// ErrorType names an error as error.type, from a short list of your own.
	// Empty: see [ErrorType].
	ErrorType func(err error) string

	// Aggregates puts aggregates on spans, as messaging.kafka.message.key. They
	// are often personal data.
	Aggregates bool

	// Logger is told what cannot be measured. Default: slog.Default().
	Logger *slog.Logger
}

// defaultContinueWindow is a collector's usual decision wait.
const defaultContinueWindow = 30 * time.Second

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "outbox"
	}
	if c.System == "" {
		c.System = "outbox"
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	if c.ContinueWindow == 0 {
		c.ContinueWindow = defaultContinueWindow
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// maxNameBytes bounds what becomes a label.
const maxNameBytes = 255

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	short := func(field, value string) {
		if len(value) > maxNameBytes {
			faults = append(faults, fmt.Errorf("tracing: %s has %d bytes, at most %d are allowed", field, len(value), maxNameBytes))
		}
	}
	short("Name", c.Name)
	short("System", c.System)
	for i, key := range c.BaggageKeys {
		if key == "" {
			faults = append(faults, fmt.Errorf("tracing: BaggageKeys[%d] is empty, name a member of the baggage", i))
		}
	}
	return errors.Join(faults...)
}
