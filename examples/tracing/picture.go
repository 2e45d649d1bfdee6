package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// picture keeps the spans that ended and draws them.
type picture struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
}

// OnStart implements sdktrace.SpanProcessor.
func (p *picture) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (p *picture) OnEnd(s sdktrace.ReadOnlySpan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spans = append(p.spans, s)
}

// Shutdown implements sdktrace.SpanProcessor.
func (p *picture) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (p *picture) ForceFlush(context.Context) error { return nil }

// draw draws the trace of the request, and in one line each other trace that
// links to it.
func (p *picture) draw(out io.Writer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(p.spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	var root sdktrace.ReadOnlySpan
	for _, s := range p.spans {
		if s.SpanKind() == trace.SpanKindServer {
			root = s
		}
	}
	if root == nil {
		return errors.New("there is no trace of the request")
	}
	_, _ = fmt.Fprintf(out, "trace %s\n\n", root.SpanContext().TraceID())
	p.branch(out, root, root.StartTime(), "", "")
	for _, s := range p.spans {
		if s.SpanContext().TraceID() != root.SpanContext().TraceID() && !s.Parent().IsValid() {
			_, _ = fmt.Fprintf(out, "\ntrace %s\n\n", s.SpanContext().TraceID())
			p.branch(out, s, root.StartTime(), "", "")
		}
	}
	return nil
}

// branch draws a span and those below it.
func (p *picture) branch(out io.Writer, s sdktrace.ReadOnlySpan, zero time.Time, indent, twig string) {
	note := ""
	if parent := p.parent(s); parent != nil {
		if gap := s.StartTime().Sub(parent.EndTime()); gap > 0 && s.SpanKind() == trace.SpanKindClient {
			note = fmt.Sprintf("   waited %s in the outbox", ms(gap))
		}
	}
	_, _ = fmt.Fprintf(out, "%-34s %-8s at %8s for %8s%s\n", indent+twig+s.Name(), s.SpanKind(),
		ms(s.StartTime().Sub(zero)), ms(s.EndTime().Sub(s.StartTime())), note)
	if twig != "" {
		indent += strings.Repeat(" ", 3)
	}
	for _, below := range p.spans {
		if below.Parent().SpanID() == s.SpanContext().SpanID() {
			p.branch(out, below, zero, indent, "└─ ")
		}
	}
}

func (p *picture) parent(s sdktrace.ReadOnlySpan) sdktrace.ReadOnlySpan {
	for _, o := range p.spans {
		if o.SpanContext().SpanID() == s.Parent().SpanID() {
			return o
		}
	}
	return nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond)) }
