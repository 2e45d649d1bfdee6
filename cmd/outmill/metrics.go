package main

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// Buckets, as the OpenTelemetry instruments of these names have them.
var (
	delayBuckets     = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	operationBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	batchBuckets     = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000}
)

// maxDestinations bounds the topics that have series of their own.
const (
	maxDestinations  = 500
	otherDestination = "_other"
)

// metrics are what /metrics shows. Their names are those that the OpenTelemetry
// instruments have when a Prometheus exporter prints them.
type metrics struct {
	registry *prometheus.Registry
	system   string

	delay       *prometheus.HistogramVec
	sent        *prometheus.CounterVec
	operation   *prometheus.HistogramVec
	retries     *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	inflight    prometheus.Gauge
	batchSize   prometheus.Histogram
	poll        *prometheus.HistogramVec
	owned       prometheus.Gauge
	transitions *prometheus.CounterVec
	held        prometheus.Gauge

	mu           sync.Mutex
	destinations map[string]bool
	heldTopics   map[string]bool
	shards       map[int]bool
}

func newMetrics(outbox, system string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(), system: system,
		destinations: map[string]bool{}, heldTopics: map[string]bool{}, shards: map[int]bool{},
	}
	constant := prometheus.Labels{"outbox_name": outbox}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: constant}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: constant, Buckets: buckets}, labels)
	}
	const destination, errorType = "messaging_destination_name", "error_type"
	m.delay = histogram("outbox_publish_delay_seconds", "From append to the broker's word.", delayBuckets, destination)
	m.sent = counter("messaging_client_sent_messages_total", "Records given to the broker; error_type is empty where it accepted them.",
		"messaging_system", "messaging_operation_name", destination, errorType)
	m.operation = histogram("messaging_client_operation_duration_seconds", "Calls to the broker, of a batch each.", operationBuckets,
		"messaging_system", "messaging_operation_name", "messaging_operation_type", errorType)
	m.retries = counter("outbox_publish_retries_total", "Failed attempts that are followed by another.", destination, errorType)
	m.deadLetters = counter("outbox_dead_letters_total", "Records that were given up by this forwarder.", destination, "outbox_dead_letter_reason")
	m.inflight = gauge("outbox_forwarder_inflight_count", "Records given to the broker that it has not answered for.")
	m.batchSize = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "outbox_forwarder_batch_size", Help: "Records in a call to the broker.", ConstLabels: constant, Buckets: batchBuckets,
	})
	m.poll = histogram("outbox_forwarder_poll_duration_seconds", "Looks for records that found some or failed.", operationBuckets, "outbox_poll_result")
	m.owned = gauge("outbox_shard_owned", "Shards that this forwarder holds.")
	m.transitions = counter("outbox_lease_transitions_total", "Shards that this forwarder got and no longer has.", "outbox_lease_event")
	m.held = gauge("outbox_topics_held_back", "Topics that cannot be reached.")
	limit := gauge("outbox_shard_limit", "Shards that there are.")
	limit.Set(backends.Shards)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outmill_build_info", Help: "The version of this program.", ConstLabels: prometheus.Labels{"version": versionText()},
	})
	build.Set(1)
	m.registry.MustRegister(m.delay, m.sent, m.operation, m.retries, m.deadLetters, m.inflight, m.batchSize, m.poll, m.owned,
		m.transitions, m.held, limit, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, event := range []string{"acquired", "lost"} {
		m.transitions.WithLabelValues(event) // so that the first one is an increase
	}
	return m
}

// destination is a topic as a label. Topics may come from data, so they are bounded.
func (m *metrics) destination(topic string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.destinations[topic] {
		if len(m.destinations) >= maxDestinations {
			return otherDestination
		}
		m.destinations[topic] = true
		for _, reason := range []string{"attempts_exhausted", "permanent"} {
			m.deadLetters.WithLabelValues(topic, reason)
		}
	}
	return topic
}

// hooks feed the metrics.
func (m *metrics) hooks() forwarder.Hooks {
	return forwarder.Hooks{
		Read: func(ctx context.Context, records []backends.Record, took time.Duration, err error) context.Context {
			result := "rows"
			switch {
			case err != nil:
				result = "error"
			case len(records) == 0:
				result = "empty"
			}
			m.poll.WithLabelValues(result).Observe(took.Seconds())
			return ctx
		},
		Publish: func(ctx context.Context, records []backends.Record) context.Context {
			m.inflight.Add(float64(len(records)))
			m.batchSize.Observe(float64(len(records)))
			return ctx
		},
		Published: m.published,
		Settled: func(_ context.Context, outcomes []backends.Outcome, err error) {
			if err != nil {
				return // it will be settled again
			}
			for _, o := range outcomes {
				m.settled(o)
			}
		},
		Leased:  func(_ context.Context, lease backends.Lease, err error) { m.leased(lease, err) },
		Breaker: m.breaker,
	}
}

func (m *metrics) published(_ context.Context, records []backends.Record, took time.Duration, err error) {
	m.inflight.Sub(float64(len(records)))
	m.operation.WithLabelValues(m.system, "publish", "send", errorType(err)).Observe(took.Seconds())
	for i, failure := range answers(len(records), err) {
		topic := m.destination(records[i].Topic)
		m.sent.WithLabelValues(m.system, "publish", topic, errorType(failure)).Inc()
		if failure == nil {
			m.delay.WithLabelValues(topic).Observe((records[i].Age + took).Seconds())
		}
	}
}

func (m *metrics) settled(o backends.Outcome) {
	switch topic := m.destination(o.Record.Topic); o.Action {
	case backends.Retry:
		m.retries.WithLabelValues(topic, errorType(o.Err)).Inc()
	case backends.Park, backends.Skip:
		reason := "attempts_exhausted"
		if backends.ClassOf(o.Err) == backends.PermanentFailure {
			reason = "permanent"
		}
		m.deadLetters.WithLabelValues(topic, reason).Inc()
	}
}

func (m *metrics) leased(lease backends.Lease, err error) {
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[int]bool, len(lease.Shards))
	for _, s := range lease.Shards {
		now[s.Shard] = true
		if !m.shards[s.Shard] {
			m.transitions.WithLabelValues("acquired").Inc()
		}
	}
	for s := range m.shards {
		if !now[s] {
			m.transitions.WithLabelValues("lost").Inc()
		}
	}
	m.shards = now
	m.owned.Set(float64(len(now)))
}

func (m *metrics) breaker(topic string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.heldTopics, topic)
	if err != nil {
		m.heldTopics[topic] = true
	}
	m.held.Set(float64(len(m.heldTopics)))
}
