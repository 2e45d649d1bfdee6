package tracing

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// instruments are those of the publisher and the forwarder. Metrics are recorded
// as things happen, never derived from spans: sampling would falsify them.
type instruments struct {
	stored         metric.Int64Counter
	storeDuration  metric.Float64Histogram
	publishDelay   metric.Float64Histogram
	sent           metric.Int64Counter
	operation      metric.Float64Histogram
	retries        metric.Int64Counter
	deadLetters    metric.Int64Counter
	replayed       metric.Int64Counter
	batchSize      metric.Int64Histogram
	pollDuration   metric.Float64Histogram
	leases         metric.Int64Counter
	purged         metric.Int64Counter
	observerErrors metric.Int64Counter
	backlogCount   metric.Int64ObservableGauge
	backlogAge     metric.Float64ObservableGauge
	shardLimit     metric.Int64ObservableGauge
	shardUnowned   metric.Int64ObservableGauge
	horizon        metric.Float64ObservableGauge
	tableSize      metric.Int64ObservableGauge
	inFlight       metric.Int64ObservableUpDownCounter
	lastPoll       metric.Float64ObservableGauge
	shardOwned     metric.Int64ObservableUpDownCounter
}

// maker makes instruments and keeps the errors.
type maker struct {
	metric.Meter
	faults []error
}

func (m *maker) note(name string, err error) {
	if err != nil {
		m.faults = append(m.faults, fmt.Errorf("tracing: instrument %s: %w", name, err))
	}
}

func (m *maker) counter(name, unit, about string) metric.Int64Counter {
	c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.note(name, err)
	return c
}

func (m *maker) seconds(name, about string, buckets []float64) metric.Float64Histogram {
	h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(buckets...))
	m.note(name, err)
	return h
}

func (m *maker) gauge(name, unit, about string) metric.Int64ObservableGauge {
	g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.note(name, err)
	return g
}

func (m *maker) secondsGauge(name, about string) metric.Float64ObservableGauge {
	g, err := m.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(about))
	m.note(name, err)
	return g
}

func (m *maker) upDown(name, unit, about string) metric.Int64ObservableUpDownCounter {
	c, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.note(name, err)
	return c
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	m := &maker{Meter: meter}
	i := &instruments{
		stored: m.counter("outbox.stored.messages", "{message}",
			"Messages given to the outbox, before commit; with error.type those that it refused."),
		storeDuration: m.seconds("outbox.store.duration", "How long the outbox took to store the messages of a call.", conventionBuckets),
		publishDelay:  m.seconds("outbox.publish.delay", "From a message's insert to the broker's durable word.", delayBuckets),
		sent:          m.counter(sentMessages.Name(), sentMessages.Unit(), sentMessages.Description()),
		operation:     m.seconds(operationDuration.Name(), operationDuration.Description(), conventionBuckets),
		retries:       m.counter("outbox.publish.retries", "{retry}", "Failed attempts that will be repeated."),
		deadLetters:   m.counter("outbox.dead_letters", "{message}", "Messages given up."),
		replayed:      m.counter("outbox.replayed.messages", "{message}", "Messages published again by a replay."),
		pollDuration:  m.seconds("outbox.forwarder.poll.duration", "How long a look for records took.", conventionBuckets),
		leases:        m.counter("outbox.lease.transitions", "{transition}", "Shards that were gained, given back or lost."),
		purged:        m.counter("outbox.purged.messages", "{message}", "Delivered messages removed at the end of their retention."),
		observerErrors: m.counter("outbox.observer.errors", "{error}",
			"Failed readings of table-wide metrics, which are then left out."),
		backlogCount: m.gauge("outbox.backlog.count", "{message}", "Messages that wait, and dead letters."),
		backlogAge:   m.secondsGauge("outbox.backlog.age", "How long the oldest message has waited; 0 if none does."),
		shardLimit:   m.gauge("outbox.shard.limit", "{shard}", "A forwarder's fair share of the shards."),
		shardUnowned: m.gauge("outbox.shard.unowned", "{shard}", "Shards without a living owner."),
		horizon: m.secondsGauge("outbox.backlog.horizon.age",
			"Age of the oldest transaction that the database keeps old rows for."),
		tableSize:  m.gauge("outbox.table.size", "By", "Size of the outbox's table on disk, with its indexes."),
		inFlight:   m.upDown("outbox.forwarder.inflight.count", "{message}", "Messages read and not settled."),
		lastPoll:   m.secondsGauge("outbox.forwarder.last_poll.timestamp", "When a look for records last ended, in Unix time."),
		shardOwned: m.upDown("outbox.shard.owned", "{shard}", "Shards that this process's forwarders hold."),
	}
	var err error
	i.batchSize, err = meter.Int64Histogram("outbox.forwarder.batch.size", metric.WithUnit("{message}"),
		metric.WithDescription("Messages read together."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	m.note("outbox.forwarder.batch.size", err)
	return i, errors.Join(m.faults...)
}
