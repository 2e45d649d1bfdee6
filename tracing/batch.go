package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
)

// batch is what was read together. Records that go to the broker by another
// goroutine, as a probe of a topic that was held back, are part of it.
type batch struct {
	began  time.Time // when the look for it began
	read   int
	span   trace.Span // nil: none is made
	silent bool       // there is no tracer

	mu        sync.Mutex
	published int
	failed    int
	open      map[backends.Ref]*publishSpan // failed, with an outcome still to come
}

type batchKey struct{}

// batchOf returns nil where ctx is of no batch, which all methods allow.
func batchOf(ctx context.Context) *batch {
	b, _ := ctx.Value(batchKey{}).(*batch)
	return b
}

// age is how old a record is now, without a look at two hosts' clocks.
func (b *batch) age(r *backends.Record, now time.Time) time.Duration { return r.Age + now.Sub(b.began) }

func (b *batch) count(published, failed int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.published += published
	b.failed += failed
}

// keep leaves a span open until the outcomes of its failed records are known.
func (b *batch) keep(s *publishSpan, failed []backends.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[backends.Ref]*publishSpan{}
	}
	s.waits = len(failed)
	for _, ref := range failed {
		b.open[ref] = s
	}
}

// outcome tells a span what became of one of its failed records.
func (b *batch) outcome(ref backends.Ref, what string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.open[ref]
	if s == nil || s.ended {
		return
	}
	if worse(what, s.outcome) {
		s.outcome = what
	}
	if s.waits--; s.waits == 0 {
		s.end(s.outcome)
	}
}

// worse compares outcomes.
func worse(a, b string) bool {
	rank := map[string]int{outcomeDelivered: 1, outcomeReleased: 2, outcomeRetry: 3, outcomeDead: 4}
	return rank[a] > rank[b]
}

// failedSpan returns the span in which a record failed.
func (b *batch) failedSpan(ref backends.Ref) trace.SpanContext {
	if b == nil {
		return trace.SpanContext{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.open[ref]; s != nil {
		return s.span.SpanContext()
	}
	return trace.SpanContext{}
}

// endAll returns spans whose outcomes could not be recorded.
func (b *batch) endAll() []*publishSpan {
	b.mu.Lock()
	defer b.mu.Unlock()
	var left []*publishSpan
	for _, s := range b.open {
		if !s.ended {
			left = append(left, s)
		}
	}
	return left
}

// publishSpan is a span of one call to the broker and one destination.
type publishSpan struct {
	span    trace.Span
	dest    *destination
	records []int // positions in the call
	answer  time.Time
	waits   int // failed records whose outcome is not known yet
	outcome string
	ended   bool
}

// fail marks the span before its outcome is known.
func (s *publishSpan) fail(errorType string, failed int) {
	s.span.SetStatus(codes.Error, "")
	s.span.SetAttributes(keyErrorType.String(errorType))
	if len(s.records) > 1 {
		s.span.SetAttributes(keyBatchFailed.Int(failed))
	}
}

// end ends the span as of the broker's answer.
func (s *publishSpan) end(outcome string) {
	if s.ended {
		return
	}
	s.ended = true
	if outcome != "" {
		s.span.SetAttributes(keyOutcome.String(outcome))
	}
	s.span.End(trace.WithTimestamp(s.answer))
}
