package tracing_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/tracing"
)

// A message that goes at once and alone stays in the trace of the request.
func TestTopology_Fresh(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("POST /orders", "orders", msg("1"))
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			create orders producer < POST /orders []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < create orders [creation: create orders, forwarder_batch: forwarder outbox] outcome=delivered attempt=1
		`)
		require.Equal(w, w.span("POST /orders").SpanContext().TraceID(), w.span("publish orders").SpanContext().TraceID())
		require.NotEqual(w, w.span("POST /orders").SpanContext().TraceID(), w.span("forwarder outbox").SpanContext().TraceID())
	})
}

// Beyond the window a trace has been decided on: what is late is in the
// forwarder's own, and links.
func TestTopology_Late(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("POST /orders", "orders", msg("1"))
		<-time.After(31 * time.Second)
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			create orders producer < POST /orders []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < forwarder outbox [creation: create orders] outcome=delivered attempt=1
		`)
		require.InDelta(w, 31, attr(w, w.span("publish orders"), "outbox.message.age").AsFloat64(), 1)
	})
}

func TestTopology_ANegativeWindowNeverContinues(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("POST /orders", "orders", msg("1"))
		w.forward(time.Second)
		require.Equal(w, w.span("forwarder outbox").SpanContext().SpanID(), w.span("publish orders").Parent().SpanID())
	}, func(c *tracing.Config) { c.ContinueWindow = -1 })
}

// Each attempt is a span that links to the one before.
func TestTopology_Retried(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = func(try int, r backends.Record) error {
			if r.MessageID == "1" && try <= 2 {
				return errTry
			}
			return nil
		}
		w.request("POST /other", "others", msg("0")) // the broker can be reached
		w.forward(time.Second)
		w.spans.Reset()
		w.request("POST /orders", "orders", msg("1"))
		w.forward(20*time.Second, withTraffic(w))
		var got []string
		for _, l := range w.lines() {
			if strings.Contains(l, " orders") && !strings.HasPrefix(l, "forwarder") {
				got = append(got, l)
			}
		}
		require.Len(w, got, 4)
		require.Regexp(w, `^publish orders client < create orders \[creation: create orders, forwarder_batch: forwarder outbox(#\d+)?\] outcome=re\w+ type=_OTHER attempt=1 ERROR`, got[1])
		require.Regexp(w, `^publish orders#2 client < forwarder outbox(#\d+)? \[creation: create orders, previous_attempt: publish orders\] outcome=re\w+ type=_OTHER attempt=\d ERROR`, got[2])
		require.Regexp(w, `^publish orders#3 client < forwarder outbox(#\d+)? \[creation: create orders, previous_attempt: publish orders#2\] outcome=delivered attempt=\d$`, got[3])
	})
}

// A record that is given up has it on its last span, and on its log line.
func TestTopology_Parked(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = func(int, backends.Record) error { return backends.Permanent(fmt.Errorf("no such topic")) }
		w.request("POST /orders", "orders", of("order-7", msg("1")))
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			create orders producer < POST /orders []
			forwarder outbox internal < - [] claimed=1 published=0 failed=1
			publish orders client < create orders [creation: create orders, forwarder_batch: forwarder outbox] outcome=dead_lettered type=rejected attempt=1 ERROR
		`)
		publish := w.span("publish orders").SpanContext()
		require.Contains(w, w.logs.String(), "trace_id="+publish.TraceID().String()+" span_id="+publish.SpanID().String())
		dead, err := w.store.Dead(context.WithoutCancel(w.Context()), backends.DeadFilter{})
		require.NoError(w, err)
		require.Equal(w, traceparentOf(w.span("create orders").SpanContext()), dead[0].Metadata["traceparent"])
	})
}

// What is requeued long after is late; its creation context is what it was.
func TestTopology_RequeuedAfterParking(t *testing.T) {
	inWorld(t, func(w *world) {
		bad := true
		w.broker.say = func(int, backends.Record) error {
			if bad {
				return backends.Permanent(errTry)
			}
			return nil
		}
		w.request("POST /orders", "orders", of("order-7", msg("1")))
		w.forward(time.Second)
		<-time.After(time.Hour)
		bad = false
		_, err := w.store.Requeue(w.Context(), backends.DeadTarget{Aggregate: "order-7"})
		require.NoError(w, err)
		w.spans.Reset()
		w.forward(time.Second)
		w.golden(`
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < forwarder outbox [creation: elsewhere] outcome=delivered attempt=1
		`)
	})
}

// A replay never appends to the trace of the first time, however young that is.
func TestTopology_Replayed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("POST /orders", "orders", msg("1"))
		w.forward(time.Second)
		again := w.broker.accepted[0].Copy()
		parent := again.Metadata["traceparent"]

		ctx, end := w.tel.Replay(w.Context(), "one message", again)
		tx := w.store.Begin()
		require.NoError(w, w.tel.PublisherIn(ctx, w.store.Publisher(tx)).Publish("orders", again))
		require.NoError(w, tx.Commit())
		end(nil)
		w.forward(time.Second)
		w.golden(`
			POST /orders server < - []
			create orders producer < POST /orders []
			forwarder outbox internal < - [] claimed=1 published=1 failed=0
			publish orders client < create orders [creation: create orders, forwarder_batch: forwarder outbox] outcome=delivered attempt=1
			replay outbox internal < - []
			forwarder outbox#2 internal < - [] claimed=1 published=1 failed=0
			publish orders#2 client < forwarder outbox#2 [creation: create orders, replay: replay outbox] outcome=delivered attempt=1 replayed=true
		`)
		require.Equal(w, parent, w.broker.accepted[1].Metadata["traceparent"])
		require.Equal(w, "true", w.broker.accepted[1].Metadata[tracing.ReplayedKey])
	})
}

// What goes together is in one span for each topic, which links to all.
func TestTopology_Batch(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("A", "orders", msg("1"))
		w.request("B", "orders", msg("2"), msg("3"))
		w.request("C", "invoices", msg("4"))
		w.broker.say = func(_ int, r backends.Record) error {
			if r.MessageID == "4" {
				return backends.Permanent(errTry)
			}
			return nil
		}
		w.forward(time.Second)
		lines := w.lines()
		require.Len(w, lines, 10)
		require.Equal(w, "forwarder outbox internal < - [] claimed=4 published=3 failed=1", lines[7])
		joined := strings.Join(lines[8:], "\n")
		require.Regexp(w, `publish orders client < forwarder outbox \[creation: create orders[#23]*, creation: create orders[#23]*, creation: create orders[#23]*\] outcome=delivered message_count=3`, joined)
		require.Regexp(w, `publish invoices client < forwarder outbox \[creation: create invoices\] outcome=dead_lettered type=rejected attempt=1 ERROR`, joined)
		for _, l := range w.span("publish orders").Links() {
			require.Contains(w, []string{"1", "2", "3"}, value(l.Attributes, "messaging.message.id"))
		}
	})
}

// An SDK keeps 128 links: a larger batch has several spans, and no link is lost.
func TestTopology_BatchOfMoreThan128Links(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 300 {
			w.request("POST /orders", "orders", msg(fmt.Sprint(i)))
		}
		w.forward(time.Second)
		ids := map[string]bool{}
		spans := 0
		for _, s := range w.spans.Ended() {
			if s.Name() != "publish orders" {
				continue
			}
			spans++
			require.Zero(w, s.DroppedLinks())
			for _, l := range s.Links() {
				ids[value(l.Attributes, "messaging.message.id")] = true
			}
		}
		require.Equal(w, 3, spans)
		require.Len(w, ids, 300)
	})
}

// Ten messages of unlike origin: five not sampled, one with a malformed header,
// one with none. Each keeps what it came with.
func TestTopology_ABatchOfManyOrigins(t *testing.T) {
	inWorld(t, func(w *world) {
		parents := map[string]string{}
		tx := w.store.Begin()
		for i := range 10 {
			m := msg(fmt.Sprint(i))
			parents[m.UUID] = fmt.Sprintf("00-%032x-%016x-%02x", i+1, i+1, i%2)
			switch i {
			case 3:
				parents[m.UUID] = "00-malformed"
			case 4:
				parents[m.UUID] = ""
			}
			if parents[m.UUID] != "" {
				m.Metadata["traceparent"] = parents[m.UUID]
			}
			require.NoError(w, w.store.Publisher(tx).Publish("orders", m)) // by a service that has no tracing
		}
		require.NoError(w, tx.Commit())
		w.forward(time.Second)
		links := w.span("publish orders").Links()
		require.Len(w, links, 8)
		for _, l := range links {
			require.Equal(w, parents[value(l.Attributes, "messaging.message.id")], traceparentOf(l.SpanContext))
		}
		for _, m := range w.broker.accepted {
			require.Equal(w, parents[m.UUID], m.Metadata["traceparent"])
		}
	})
}

// Looks that find nothing make no spans.
func TestTopology_IdleMakesNoSpans(t *testing.T) {
	inWorld(t, func(w *world) {
		w.forward(10 * time.Minute)
		require.Empty(w, w.spans.Started())
	})
}

// With NoBatchSpans what has no request's trace is a root.
func TestTopology_NoBatchSpans(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("A", "orders", msg("1"))
		w.forward(time.Second)
		w.request("B", "orders", msg("2"), msg("3"))
		w.forward(time.Second)
		lines := w.lines()
		require.Equal(w, "publish orders client < create orders [creation: create orders] outcome=delivered attempt=1", lines[2])
		require.Equal(w, "publish orders#2 client < - [creation: create orders#2, creation: create orders#3] outcome=delivered message_count=2", sorted(lines[6]))
	}, func(c *tracing.Config) { c.NoBatchSpans = true })
}

func sorted(line string) string {
	return strings.Replace(line, "creation: create orders#3, creation: create orders#2", "creation: create orders#2, creation: create orders#3", 1)
}

func attr(w *world, s interface{ Name() string }, key string) (v attrValue) {
	w.Helper()
	for _, a := range w.span(s.Name()).Attributes() {
		if string(a.Key) == key {
			return a.Value
		}
	}
	require.Fail(w, "no attribute "+key)
	return v
}

// traceparentOf is the header's form, written by hand so that nothing under test
// has a part in it.
func traceparentOf(sc trace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags())
}
