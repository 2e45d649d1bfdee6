package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outmill/outmill/backends"
)

// answers are the errors of a batch, nil for each record that was accepted.
func answers(n int, err error) []error {
	out := make([]error, n)
	var partial *backends.PartialError
	if errors.As(err, &partial) {
		for _, f := range partial.Failures {
			if f.Index >= 0 && f.Index < n {
				out[f.Index] = f.Err
				if f.Err == nil {
					out[f.Index] = partial
				}
			}
		}
		return out
	}
	for i := range out {
		out[i] = err
	}
	return out
}

// errorType is a label with few values: empty, permanent, unavailable, retryable or timeout.
func errorType(err error) string {
	switch {
	case err == nil:
		return ""
	case backends.ClassOf(err) != backends.Retryable:
		return backends.ClassOf(err).String()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return backends.Retryable.String()
}

// backlogLimit is how long a scrape waits for the database.
const backlogLimit = 5 * time.Second

// backlogCollector measures the backlog when it is scraped, and no more often
// than an interval.
type backlogCollector struct {
	store    backends.Outbox
	interval time.Duration

	count, age, unowned, parked, owners *prometheus.Desc
	errors                              prometheus.Counter

	mu   sync.Mutex
	at   time.Time
	last backends.Backlog
	good bool
}

func newBacklogCollector(store backends.Outbox, outbox string, interval time.Duration) *backlogCollector {
	constant := prometheus.Labels{"outbox_name": outbox}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, constant)
	}
	return &backlogCollector{
		store: store, interval: interval,
		count:   desc("outbox_backlog_count", "Records in the outbox; counting stops at a bound.", "outbox_message_state"),
		age:     desc("outbox_backlog_age_seconds", "How long the oldest record has waited, by the database's clock; 0 when there is none."),
		unowned: desc("outbox_shard_unowned", "Shards without a living owner, whichever forwarder is asked."),
		parked:  desc("outbox_parked_aggregates", "Aggregates that are set aside."),
		owners:  desc("outbox_forwarders_alive", "Forwarders alive, whichever is asked."),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outbox_observer_errors_total", Help: "Failed measurements of the backlog; its gauges are missing then.", ConstLabels: constant,
		}),
	}
}

// Describe implements prometheus.Collector.
func (b *backlogCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{b.count, b.age, b.unowned, b.parked, b.owners} {
		ch <- d
	}
	b.errors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (b *backlogCollector) Collect(ch chan<- prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) >= b.interval || !b.good {
		ctx, cancel := context.WithTimeout(context.Background(), backlogLimit)
		last, err := b.store.Backlog(ctx)
		cancel()
		b.last, b.good, b.at = last, err == nil, time.Now()
		if err != nil {
			b.errors.Inc()
		}
	}
	b.errors.Collect(ch)
	if !b.good {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(b.count, float64(b.last.Ready), "ready")
	gauge(b.count, float64(b.last.Delayed), "delayed")
	gauge(b.count, float64(b.last.Dead), "dead")
	gauge(b.age, b.last.OldestAge.Seconds())
	gauge(b.unowned, float64(b.last.UnownedShards))
	gauge(b.parked, float64(b.last.Parked))
	gauge(b.owners, float64(len(b.last.Owners)))
}
