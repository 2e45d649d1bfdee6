package tracing

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
)

// maxLinks is from how many links on a span takes no more messages, each of which
// brings three at most: an SDK keeps 128 and drops the rest without a word.
const maxLinks = 100

// publishing is a call to the broker.
type publishing struct {
	began time.Time
	spans []*publishSpan
}

type publishingKey struct{}

// group is what of a call has one destination.
type group struct {
	topic   string
	dest    *destination
	records []int
}

// groups splits a call by topic, in the order of each topic's first record.
func (t *Telemetry) groups(records []backends.Record) []*group {
	var out []*group
	by := map[string]*group{}
	var last *group
	for i := range records {
		topic := records[i].Topic
		if last == nil || last.topic != topic {
			if last = by[topic]; last == nil {
				last = &group{topic: topic, dest: t.names.of(topic)}
				by[topic] = last
				out = append(out, last)
			}
		}
		last.records = append(last.records, i)
	}
	return out
}

// publish begins the spans of a call.
func (h *hooks) publish(ctx context.Context, records []backends.Record) context.Context {
	p := &publishing{began: time.Now()}
	b := batchOf(ctx)
	if b == nil || b.silent {
		return context.WithValue(ctx, publishingKey{}, p)
	}
	if len(records) == 1 {
		var s *publishSpan
		ctx, s = h.single(ctx, b, &records[0])
		p.spans = append(p.spans, s)
		return context.WithValue(ctx, publishingKey{}, p)
	}
	for _, g := range h.groups(records) {
		for rest := g.records; len(rest) > 0; {
			s := h.several(ctx, b, g, rest, records)
			rest = rest[len(s.records):]
			p.spans = append(p.spans, s)
		}
	}
	return context.WithValue(ctx, publishingKey{}, p)
}

// single begins the span of a message that goes alone.
func (h *hooks) single(ctx context.Context, b *batch, r *backends.Record) (context.Context, *publishSpan) {
	dest := h.names.of(r.Topic)
	age := b.age(r, time.Now())
	links, fresh := h.links(nil, r)
	creation := h.carry.creation(r.Metadata)
	attrs := h.recordAttributes(dest, r, age)
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...)}
	switch {
	case fresh && creation.IsValid() && age <= h.cfg.ContinueWindow:
		if b.span != nil {
			links = append(links, trace.Link{SpanContext: b.span.SpanContext(), Attributes: []attribute.KeyValue{linkBatch}})
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, creation)
	case b.span == nil:
		opts = append(opts, trace.WithNewRoot())
	}
	ctx, span := h.tracer.Start(ctx, "publish "+dest.name, append(opts, trace.WithLinks(links...))...)
	return ctx, &publishSpan{span: span, dest: dest, records: []int{0}}
}

// recordAttributes are those of a span of one message.
func (h *hooks) recordAttributes(dest *destination, r *backends.Record, age time.Duration) []attribute.KeyValue {
	attrs := h.messageAttributes(make([]attribute.KeyValue, 0, 16), publishOperation, dest, r.Topic)
	attrs = append(attrs, keyMessageID.String(r.MessageID), keyShard.Int(r.Shard),
		keyAttempt.Int(r.Attempts+1), keyAge.Float64(seconds(age)))
	if id := r.Metadata[correlationKey]; id != "" {
		attrs = append(attrs, keyConversationID.String(id))
	}
	if _, replayed := replayOf(r.Metadata); replayed {
		attrs = append(attrs, keyReplayed.Bool(true))
	}
	return h.withAggregate(attrs, r.Aggregate)
}

// several begins the span of messages that go together: of the rest, as many as
// it has links for.
func (h *hooks) several(ctx context.Context, b *batch, g *group, rest []int, records []backends.Record) *publishSpan {
	links := make([]trace.Link, 0, min(len(rest), maxLinks+2))
	n := 0
	for ; n < min(len(rest), maxLinks) && len(links) < maxLinks; n++ {
		r := &records[rest[n]]
		links, _ = h.links(links, r, keyMessageID.String(r.MessageID))
	}
	var attrs []attribute.KeyValue
	if n == 1 {
		r := &records[rest[0]]
		attrs = h.recordAttributes(g.dest, r, b.age(r, time.Now()))
	} else {
		attrs = h.messageAttributes(make([]attribute.KeyValue, 0, 8), publishOperation, g.dest, g.topic)
		attrs = append(attrs, keyBatchCount.Int(n))
	}
	opts := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...), trace.WithLinks(links...),
	}
	if b.span == nil {
		opts = append(opts, trace.WithNewRoot())
	}
	_, span := h.tracer.Start(ctx, "publish "+g.dest.name, opts...)
	return &publishSpan{span: span, dest: g.dest, records: rest[:n]}
}

// links appends what a message leads back to. fresh is true at its first attempt
// if that is no replay.
func (h *hooks) links(links []trace.Link, r *backends.Record, more ...attribute.KeyValue) (_ []trace.Link, fresh bool) {
	add := func(sc trace.SpanContext, kind attribute.KeyValue) {
		if sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc, Attributes: append([]attribute.KeyValue{kind}, more...)})
		}
	}
	add(h.carry.creation(r.Metadata), linkCreation)
	previous := h.last.of(r.Ref)
	add(previous, linkPrevious)
	replay, replayed := replayOf(r.Metadata)
	add(replay, linkReplay)
	return links, r.Attempts == 0 && !previous.IsValid() && !replayed
}

// published tells spans and metrics the broker's answer.
func (h *hooks) published(ctx context.Context, records []backends.Record, took time.Duration, err error) {
	p, _ := ctx.Value(publishingKey{}).(*publishing)
	b := batchOf(ctx)
	if p == nil || b == nil {
		return
	}
	now := time.Now()
	failures := failuresOf(records, err)
	for _, s := range p.spans {
		h.answer(b, s, records, failures, now)
	}
	if len(p.spans) == 1 {
		h.measure(trace.ContextWithSpan(ctx, p.spans[0].span), b, records, failures, now, took)
		return
	}
	h.measure(ctx, b, records, failures, now, took)
}

// answer ends a span, or leaves it open until what failed has its outcome.
func (h *hooks) answer(b *batch, s *publishSpan, records []backends.Record, failures map[int]backends.Failure, now time.Time) {
	s.answer = now
	var failed []backends.Ref
	var why string
	for _, i := range s.records {
		ref := records[i].Ref
		f, bad := failures[i]
		if !bad {
			h.last.forget(ref)
			continue
		}
		failed = append(failed, ref)
		if f.State == backends.NotSent {
			continue // it waits behind one that was sent
		}
		if why == "" {
			why = h.errorType(f.Err)
		}
		if sc := s.span.SpanContext(); sc.IsValid() {
			h.last.note(ref, sc)
		}
	}
	if len(failed) == 0 {
		s.end(outcomeDelivered)
		return
	}
	if why == "" {
		why = h.errorType(failures[s.records[0]].Err)
	}
	s.fail(why, len(failed))
	b.keep(s, failed)
}

// measure records the metrics of a call.
func (h *hooks) measure(ctx context.Context, b *batch, records []backends.Record, failures map[int]backends.Failure, now time.Time, took time.Duration) {
	delays := h.metrics.publishDelay.Enabled(ctx)
	if !delays && !h.metrics.sent.Enabled(ctx) && !h.metrics.operation.Enabled(ctx) {
		return
	}
	for _, g := range h.groups(records) {
		ok := 0
		bad := map[string]int{}
		first := ""
		for _, i := range g.records {
			f, failed := failures[i]
			if !failed {
				ok++
				if delays {
					h.metrics.publishDelay.Record(ctx, seconds(b.age(&records[i], now)), g.dest.plain)
				}
				continue
			}
			if f.State == backends.NotSent {
				continue
			}
			name := h.errorType(f.Err)
			if bad[name]++; first == "" {
				first = name
			}
		}
		if ok > 0 {
			h.metrics.sent.Add(ctx, int64(ok), g.dest.ok.sent)
		}
		for name, n := range bad {
			h.metrics.sent.Add(ctx, int64(n), h.names.failed(g.dest, name).sent)
		}
		h.metrics.operation.Record(ctx, seconds(took), h.names.failed(g.dest, first).operation)
	}
}

// failuresOf lists what was not accepted by its place in the call. An error that
// is no answer for single records says that nothing is known of any.
func failuresOf(records []backends.Record, err error) map[int]backends.Failure {
	if err == nil {
		return nil
	}
	out := map[int]backends.Failure{}
	var partial *backends.PartialError
	if errors.As(err, &partial) && partial != nil {
		for _, f := range partial.Failures {
			if f.Index < 0 || f.Index >= len(records) {
				clear(out)
				break
			}
			out[f.Index] = f
		}
		if len(out) > 0 || len(partial.Failures) == 0 {
			return out
		}
	}
	for i := range records {
		out[i] = backends.Failure{Index: i, State: backends.Unknown, Err: err}
	}
	return out
}
