package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// Forwarder returns hooks that make spans and metrics of what a forwarder does.
// Each forwarder needs hooks of its own.
//
// A link to the previous attempt is made where that was made under the same
// hooks: attempts of a forwarder that has died are not known to its successor.
func (t *Telemetry) Forwarder() forwarder.Hooks {
	h := &hooks{Telemetry: t, epochs: map[int]int64{}, last: newAttempts()}
	return forwarder.Hooks{
		Run:       h.run,
		Read:      h.read,
		Publish:   h.publish,
		Published: h.published,
		Settled:   h.settled,
		Done:      h.done,
		Leased:    h.leased,
		Released:  h.released,
		Purged:    h.purged,
		Log:       h.log,
	}
}

// hooks are those of one forwarder.
type hooks struct {
	*Telemetry
	last *attempts

	mu     sync.Mutex
	epochs map[int]int64 // of the shards held
}

// run keeps drivers quiet while the forwarder looks for work.
func (h *hooks) run(ctx context.Context) context.Context {
	for _, event := range []string{"acquired", "released", "lost"} {
		h.metrics.leases.Add(ctx, 0, h.event(event))
	}
	h.metrics.purged.Add(ctx, 0, h.plain)
	return quiet(ctx)
}

func (h *hooks) event(name string) metric.MeasurementOption {
	return metric.WithAttributes(h.outbox(), keyLeaseEvent.String(name))
}

// read begins a batch.
func (h *hooks) read(ctx context.Context, records []backends.Record, took time.Duration, err error) context.Context {
	result := "rows"
	switch {
	case err != nil:
		result = "error"
	case len(records) == 0:
		result = "empty"
	}
	now := time.Now()
	h.lastPoll.Store(now.UnixNano())
	if len(records) == 0 {
		h.metrics.pollDuration.Record(ctx, seconds(took), metric.WithAttributes(h.outbox(), keyPollResult.String(result)))
		return ctx
	}
	h.inFlight.Add(int64(len(records)))
	b := &batch{began: now.Add(-took), read: len(records)}
	if !h.cfg.NoBatchSpans {
		ctx, b.span = h.tracer.Start(ctx, "forwarder "+h.cfg.Name,
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindInternal), trace.WithTimestamp(b.began),
			trace.WithAttributes(h.outbox(), keyBatchRead.Int(len(records))))
		b.silent = !b.span.SpanContext().IsValid()
	}
	h.metrics.pollDuration.Record(ctx, seconds(took), metric.WithAttributes(h.outbox(), keyPollResult.String(result)))
	h.metrics.batchSize.Record(ctx, int64(len(records)), h.plain)
	return context.WithValue(ctx, batchKey{}, b)
}

// done ends a batch.
func (h *hooks) done(ctx context.Context) {
	b := batchOf(ctx)
	if b == nil {
		return
	}
	h.inFlight.Add(-int64(b.read))
	for _, s := range b.endAll() {
		s.end("")
	}
	if b.span == nil {
		return
	}
	b.mu.Lock()
	published, failed := b.published, b.failed
	b.mu.Unlock()
	b.span.SetAttributes(keyBatchPublished.Int(published), keyBatchFailed.Int(failed))
	b.span.End()
}

// settled counts what a failure came to.
func (h *hooks) settled(ctx context.Context, outcomes []backends.Outcome, err error) {
	if err != nil {
		return
	}
	b := batchOf(ctx)
	delivered := 0
	for i := range outcomes {
		o := &outcomes[i]
		switch o.Action {
		case backends.Delivered:
			delivered++
			continue
		case backends.Retry:
			dest := h.names.of(o.Record.Topic)
			h.metrics.retries.Add(ctx, 1, metric.WithAttributes(h.outbox(), dest.label, keyErrorType.String(h.errorType(o.Err))))
			b.outcome(o.Record.Ref, outcomeRetry)
		case backends.Park, backends.Skip:
			dest := h.names.of(o.Record.Topic)
			h.metrics.deadLetters.Add(ctx, 1, metric.WithAttributes(h.outbox(), dest.label, keyReason.String(h.deadReason(o.Err))))
			b.outcome(o.Record.Ref, outcomeDead)
			h.last.forget(o.Record.Ref)
		case backends.Release:
			b.outcome(o.Record.Ref, outcomeReleased)
		}
	}
	b.count(delivered, len(outcomes)-delivered)
}

// log is the context under which something about a record is logged: that of its
// failed publish, or else its creation context.
func (h *hooks) log(ctx context.Context, r *backends.Record) context.Context {
	if sc := batchOf(ctx).failedSpan(r.Ref); sc.IsValid() {
		return trace.ContextWithSpanContext(ctx, sc)
	}
	if sc := h.carry.creation(r.Metadata); sc.IsValid() {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}

// leased compares the lease with the one before.
func (h *hooks) leased(ctx context.Context, lease backends.Lease, err error) {
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := make(map[int]int64, len(lease.Shards))
	var acquired, lost int64
	for _, s := range lease.Shards {
		now[s.Shard] = s.Epoch
		if was, held := h.epochs[s.Shard]; !held || was != s.Epoch {
			acquired++
		}
	}
	for shard, epoch := range h.epochs {
		if is, held := now[shard]; !held || is != epoch {
			lost++
		}
	}
	h.owned.Add(int64(len(now) - len(h.epochs)))
	h.epochs = now
	h.count(ctx, "acquired", acquired)
	h.count(ctx, "lost", lost)
}

func (h *hooks) count(ctx context.Context, event string, n int64) {
	if n > 0 {
		h.metrics.leases.Add(ctx, n, h.event(event))
	}
}

func (h *hooks) released(ctx context.Context, lease backends.Lease, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var n int64
	for _, s := range lease.Shards {
		if _, held := h.epochs[s.Shard]; held {
			delete(h.epochs, s.Shard)
			n++
		}
	}
	h.owned.Add(-n)
	if err == nil {
		h.count(ctx, "released", n)
	} else {
		h.count(ctx, "lost", n) // it runs out
	}
}

func (h *hooks) purged(ctx context.Context, records int, err error) {
	if err == nil && records > 0 {
		h.metrics.purged.Add(ctx, int64(records), h.plain)
	}
}

// attempts remembers the spans of attempts that failed.
type attempts struct {
	mu    sync.Mutex
	spans map[backends.Ref]trace.SpanContext
}

// maxAttempts bounds the memory of an outage; beyond it all start again.
const maxAttempts = 10_000

func newAttempts() *attempts { return &attempts{spans: map[backends.Ref]trace.SpanContext{}} }

func (a *attempts) of(ref backends.Ref) trace.SpanContext {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spans[ref]
}

func (a *attempts) note(ref backends.Ref, sc trace.SpanContext) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.spans) >= maxAttempts {
		clear(a.spans)
	}
	a.spans[ref] = sc
}

func (a *attempts) forget(ref backends.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.spans) > 0 {
		delete(a.spans, ref)
	}
}
