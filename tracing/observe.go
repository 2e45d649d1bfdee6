package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/outmill/outmill/backends"
)

// How often table-wide metrics are read, and how long that may take.
const (
	observeEvery   = 15 * time.Second
	observeTimeout = 2 * time.Second
	observeLog     = time.Minute
)

// observer reads what is true of the table as a whole. Every replica sees the
// same, so these are gauges, to be joined by max and never added up.
type observer struct {
	tel    *Telemetry
	unhook func() error

	mu     sync.Mutex
	at     time.Time // of the last reading
	ok     bool      // whether it succeeded
	seen   seen
	logged time.Time
}

// seen is a reading.
type seen struct {
	backends.Backlog
	backends.Measures
}

func newObserver(t *Telemetry) *observer {
	return &observer{tel: t, unhook: func() error { return nil }}
}

func (o *observer) unregister() error { return o.unhook() }

func (o *observer) register(meter metric.Meter) error {
	m := o.tel.metrics
	own, err := meter.RegisterCallback(o.own, m.inFlight, m.lastPoll, m.shardOwned)
	if err != nil {
		return err
	}
	o.unhook = own.Unregister
	if o.tel.cfg.Outbox == nil {
		return nil
	}
	m.observerErrors.Add(context.Background(), 0, o.tel.outboxOnly(errorTimeout))
	table, err := meter.RegisterCallback(o.table, m.backlogCount, m.backlogAge, m.shardLimit, m.shardUnowned, m.horizon, m.tableSize)
	if err != nil {
		return err
	}
	o.unhook = func() error {
		_ = own.Unregister() // never fails but where it was made
		return table.Unregister()
	}
	return nil
}

// own tells what this process holds, once it has forwarded.
func (o *observer) own(_ context.Context, out metric.Observer) error {
	t := o.tel
	last := t.lastPoll.Load()
	if last == 0 {
		return nil
	}
	out.ObserveInt64(t.metrics.inFlight, t.inFlight.Load(), t.plain)
	out.ObserveInt64(t.metrics.shardOwned, t.owned.Load(), t.plain)
	out.ObserveFloat64(t.metrics.lastPoll, float64(last)/float64(time.Second), t.plain)
	return nil
}

// table tells what is true of the table. After a failure it says nothing: a value
// that stands still looks healthy.
func (o *observer) table(ctx context.Context, out metric.Observer) error {
	b, ok := o.current(ctx)
	if !ok {
		return nil
	}
	t := o.tel
	count := func(state string, n int64) {
		out.ObserveInt64(t.metrics.backlogCount, n, metric.WithAttributes(t.outbox(), keyState.String(state)))
	}
	count("ready", b.Ready)
	count("delayed", b.Delayed)
	count("dead", b.Dead)
	out.ObserveFloat64(t.metrics.backlogAge, seconds(b.OldestAge), t.plain)
	out.ObserveInt64(t.metrics.shardUnowned, int64(b.UnownedShards), t.plain)
	if b.TableBytes >= 0 {
		out.ObserveInt64(t.metrics.tableSize, b.TableBytes, t.plain)
	}
	if b.HorizonAge >= 0 {
		out.ObserveFloat64(t.metrics.horizon, seconds(b.HorizonAge), t.plain)
	}
	owners := max(1, len(b.Owners))
	out.ObserveInt64(t.metrics.shardLimit, int64((backends.Shards+owners-1)/owners), t.plain)
	return nil
}

// current reads the backlog, or returns what was read a short time ago.
func (o *observer) current(ctx context.Context) (seen, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.at.IsZero() || now.Sub(o.at) >= observeEvery {
		o.at = now
		o.read(ctx, now)
	}
	return o.seen, o.ok
}

func (o *observer) read(ctx context.Context, now time.Time) {
	t := o.tel
	ctx, cancel := context.WithTimeout(quiet(ctx), observeTimeout)
	defer cancel()
	var err error
	o.seen, err = measure(ctx, t.cfg.Outbox)
	o.ok = err == nil
	if err == nil {
		return
	}
	name := t.errorType(err)
	t.metrics.observerErrors.Add(ctx, 1, t.outboxOnly(name))
	if now.Sub(o.logged) >= observeLog {
		o.logged = now
		t.cfg.Logger.WarnContext(ctx, "the backlog could not be measured", "outbox.name", t.cfg.Name, "error.type", name)
	}
}

func measure(ctx context.Context, store backends.Outbox) (seen, error) {
	s := seen{Measures: backends.Measures{TableBytes: -1, HorizonAge: -1}}
	var err error
	if s.Backlog, err = store.Backlog(ctx); err != nil {
		return s, err
	}
	if m, ok := store.(backends.Measurer); ok {
		s.Measures, err = m.Measure(ctx)
	}
	return s, err
}
