package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/tracing"
)

// A day in the life of an outbox: something of everything that is measured.
func day(w *world) {
	w.broker.say = func(try int, r backends.Record) error {
		switch {
		case r.MessageID == "retried" && try <= 2:
			return errTry
		case r.MessageID == "poison":
			return backends.Permanent(errors.New("MESSAGE_TOO_LARGE"))
		}
		return nil
	}
	w.request("A", "orders", msg("0"), msg("retried"), of("a", msg("poison")))
	_ = w.tel.Publisher(&sink{err: errTry}).Publish("orders", msg("refused"))
	w.forward(2*time.Minute, withTraffic(w))
	_, end := w.tel.Replay(w.Context(), "one", msg("0"))
	end(nil)
}

// instrument is what a metric is, in words: kind, unit, attribute keys, buckets.
func instrument(m metricdata.Metrics) string {
	keys := map[string]bool{}
	note := func(set attribute.Set) {
		for _, kv := range set.ToSlice() {
			keys[string(kv.Key)] = true
		}
	}
	kind, bounds := "", []float64(nil)
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		kind = "counter"
		if !d.IsMonotonic {
			kind = "updown"
		}
		for _, p := range d.DataPoints {
			note(p.Attributes)
		}
	case metricdata.Gauge[int64]:
		kind = "gauge"
		for _, p := range d.DataPoints {
			note(p.Attributes)
		}
	case metricdata.Gauge[float64]:
		kind = "gauge"
		for _, p := range d.DataPoints {
			note(p.Attributes)
		}
	case metricdata.Histogram[float64]:
		kind, bounds = "histogram", d.DataPoints[0].Bounds
		for _, p := range d.DataPoints {
			note(p.Attributes)
		}
	case metricdata.Histogram[int64]:
		kind, bounds = "histogram", d.DataPoints[0].Bounds
		for _, p := range d.DataPoints {
			note(p.Attributes)
		}
	}
	var names []string
	for k := range keys {
		names = append(names, k)
	}
	slices.Sort(names)
	text := fmt.Sprintf("%s %s (%s)", kind, m.Unit, strings.Join(names, " "))
	if bounds != nil {
		text += fmt.Sprint(" ", bounds)
	}
	return text
}

const (
	conventionBuckets = " [0.005 0.01 0.025 0.05 0.075 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10]"
	delayBuckets      = " [0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300 900 3600]"
)

// The instruments, to the letter. None has a label for a message, an aggregate or
// a shard.
var instruments = map[string]string{
	"outbox.stored.messages":               "counter {message} (error.type messaging.destination.name outbox.name)",
	"outbox.store.duration":                "histogram s (error.type outbox.name)" + conventionBuckets,
	"outbox.backlog.count":                 "gauge {message} (outbox.message.state outbox.name)",
	"outbox.backlog.age":                   "gauge s (outbox.name)",
	"outbox.publish.delay":                 "histogram s (messaging.destination.name outbox.name)" + delayBuckets,
	"messaging.client.sent.messages":       "counter {message} (error.type messaging.destination.name messaging.operation.name messaging.system)",
	"messaging.client.operation.duration":  "histogram s (error.type messaging.destination.name messaging.operation.name messaging.operation.type messaging.system)" + conventionBuckets,
	"outbox.publish.retries":               "counter {retry} (error.type messaging.destination.name outbox.name)",
	"outbox.dead_letters":                  "counter {message} (messaging.destination.name outbox.dead_letter.reason outbox.name)",
	"outbox.replayed.messages":             "counter {message} (outbox.name)",
	"outbox.forwarder.inflight.count":      "updown {message} (outbox.name)",
	"outbox.forwarder.batch.size":          "histogram {message} (outbox.name) [1 2 5 10 25 50 100 250 500 1000]",
	"outbox.forwarder.poll.duration":       "histogram s (outbox.name outbox.poll.result)" + conventionBuckets,
	"outbox.forwarder.last_poll.timestamp": "gauge s (outbox.name)",
	"outbox.shard.owned":                   "updown {shard} (outbox.name)",
	"outbox.shard.limit":                   "gauge {shard} (outbox.name)",
	"outbox.shard.unowned":                 "gauge {shard} (outbox.name)",
	"outbox.lease.transitions":             "counter {transition} (outbox.lease.event outbox.name)",
	"outbox.purged.messages":               "counter {message} (outbox.name)",
	"outbox.observer.errors":               "counter {error} (error.type outbox.name)",
	"outbox.backlog.horizon.age":           "gauge s (outbox.name)",
	"outbox.table.size":                    "gauge By (outbox.name)",
}

func TestMetrics_EveryInstrument(t *testing.T) {
	inWorld(t, func(w *world) {
		day(w)
		got := map[string]string{}
		for name, m := range w.metrics() {
			got[name] = instrument(m)
			require.NotEmpty(w, m.Description, name)
		}
		require.Equal(w, instruments, got)
	}, measured)
}

// Metrics do not come from spans: without a tracer they are the same.
func TestMetrics_WithoutATracer(t *testing.T) {
	counts := func(w *world) map[string]int64 {
		day(w)
		out := map[string]int64{}
		for name, m := range w.metrics() {
			for labels, n := range sums(m) {
				out[name+labels] = n
			}
		}
		return out
	}
	var with, without map[string]int64
	inWorld(t, func(w *world) { with = counts(w) })
	inWorld(t, func(w *world) { without = counts(w) }, func(c *tracing.Config) { c.TracerProvider = noop.NewTracerProvider() })
	for _, m := range []map[string]int64{with, without} {
		for k := range m { // waits have jitter: how often they look, and what a failure is taken for, is chance
			if strings.HasPrefix(k, "outbox.forwarder.") || strings.HasPrefix(k, "outbox.publish.retries") || strings.HasPrefix(k, "messaging.client.operation.duration") {
				delete(m, k)
			}
		}
	}
	require.Equal(t, with, without)
	require.EqualValues(t, 1, with["outbox.dead_letters{messaging.destination.name=orders outbox.dead_letter.reason=too_large outbox.name=outbox}"])
	require.EqualValues(t, 0, with["outbox.dead_letters{messaging.destination.name=orders outbox.dead_letter.reason=unroutable outbox.name=outbox}"])
	require.EqualValues(t, 3, with["outbox.stored.messages{messaging.destination.name=orders outbox.name=outbox}"])
	require.EqualValues(t, 1, with["outbox.stored.messages{error.type=_OTHER messaging.destination.name=orders outbox.name=outbox}"])
	require.EqualValues(t, 2, with["outbox.publish.delay{messaging.destination.name=orders outbox.name=outbox}"])
	require.EqualValues(t, backends.Shards, with["outbox.lease.transitions{outbox.lease.event=acquired outbox.name=outbox}"])
	require.EqualValues(t, backends.Shards, with["outbox.lease.transitions{outbox.lease.event=released outbox.name=outbox}"])
	require.EqualValues(t, 0, with["outbox.lease.transitions{outbox.lease.event=lost outbox.name=outbox}"])
	require.EqualValues(t, 1, with["outbox.backlog.count{outbox.message.state=dead outbox.name=outbox}"])
	require.EqualValues(t, 0, with["outbox.shard.owned{outbox.name=outbox}"])
}

// sums are counts by labels; of a histogram how many values it has.
func sums(m metricdata.Metrics) map[string]int64 {
	out := map[string]int64{}
	labels := func(set attribute.Set) string {
		var parts []string
		for _, kv := range set.ToSlice() {
			parts = append(parts, string(kv.Key)+"="+kv.Value.String())
		}
		return "{" + strings.Join(parts, " ") + "}"
	}
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			out[labels(p.Attributes)] = p.Value
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			out[labels(p.Attributes)] = p.Value
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			out[labels(p.Attributes)] = int64(p.Count)
		}
	}
	return out
}

// The delay is the database's: from insert to the broker's word.
func TestMetrics_DelayIsFromInsertToTheBrokersWord(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("A", "orders", msg("1"))
		<-time.After(100 * time.Second)
		w.forward(time.Second)
		d := w.metrics()["outbox.publish.delay"].Data.(metricdata.Histogram[float64])
		require.InDelta(w, 100, d.DataPoints[0].Sum, 0.5)
	})
}

// The table is asked at most once each 15 seconds, however often metrics are
// collected. A failure is counted, and shows no stale value.
func TestObserver_OneBoundedReadingEach15Seconds(t *testing.T) {
	s := &counted{}
	inWorld(t, func(w *world) {
		w.request("A", "orders", msg("1"))
		for range 60 {
			require.Contains(w, w.metrics(), "outbox.backlog.age")
			<-time.After(time.Second)
		}
		require.Equal(w, 4, s.calls)
		require.LessOrEqual(w, s.limit, 2*time.Second)

		s.err = errors.New("secret")
		<-time.After(15 * time.Second)
		got := w.metrics()
		for _, name := range []string{"outbox.backlog.age", "outbox.backlog.count", "outbox.shard.unowned", "outbox.shard.limit"} {
			require.NotContains(w, got, name)
		}
		require.EqualValues(w, 1, sums(got["outbox.observer.errors"])["{error.type=_OTHER outbox.name=outbox}"])
		require.EqualValues(w, 0, sums(got["outbox.observer.errors"])["{error.type=timeout outbox.name=outbox}"])
		require.Contains(w, w.logs.String(), "the backlog could not be measured")
		require.NotContains(w, w.logs.String(), "secret")

		s.err = nil
		<-time.After(15 * time.Second)
		require.Contains(w, w.metrics(), "outbox.backlog.age")
		require.NoError(w, w.tel.Close())
		<-time.After(time.Minute)
		calls := s.calls
		require.NotContains(w, w.metrics(), "outbox.backlog.age")
		require.Equal(w, calls, s.calls, "a closed Telemetry asks no more")
	}, func(c *tracing.Config) { s.Outbox, c.Outbox = c.Outbox, s })
}

// counted counts readings.
type counted struct {
	backends.Outbox
	calls int
	limit time.Duration
	err   error
}

func (c *counted) Backlog(ctx context.Context) (backends.Backlog, error) {
	c.calls++
	if d, ok := ctx.Deadline(); ok {
		c.limit = max(c.limit, time.Until(d))
	}
	if c.err != nil {
		return backends.Backlog{}, c.err
	}
	return c.Outbox.Backlog(ctx)
}

// measured gives the store what Postgres has, and a purge.
func measured(c *tracing.Config) { c.Outbox = measurer{c.Outbox.(*memory.Store)} }

type measurer struct{ *memory.Store }

func (measurer) Measure(context.Context) (backends.Measures, error) {
	return backends.Measures{TableBytes: 8192, HorizonAge: time.Second}, nil
}

// However many topics there are, metrics have names for 200 and one for the rest.
func TestMetrics_TopicsWithoutEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 3000 {
			require.NoError(w, w.tel.Publisher(&sink{}).Publish(fmt.Sprintf("order.%d", i), msg("1")))
		}
		got := sums(w.metrics()["outbox.stored.messages"])
		require.Len(w, got, 201)
		require.EqualValues(w, 2800, got["{messaging.destination.name=_other outbox.name=outbox}"])
		require.Equal(w, 1, strings.Count(w.logs.String(), "more topics than metrics have names for"))
	})
	inWorld(t, func(w *world) {
		for i := range 300 {
			require.NoError(w, w.tel.Publisher(&sink{}).Publish(fmt.Sprintf("order.%d", i), msg("1")))
		}
		require.Equal(w, map[string]int64{"{messaging.destination.template=order.{id} outbox.name=outbox}": 300},
			sums(w.metrics()["outbox.stored.messages"]))
		s := w.spans.Ended()[0]
		require.Equal(w, "create order.{id}", s.Name())
		require.Equal(w, "order.0", value(s.Attributes(), "messaging.destination.name"))
	}, func(c *tracing.Config) { c.Destination = func(string) string { return "order.{id}" } })
}

// Ten thousand messages of a thousand aggregates make no more series than one.
func TestMetrics_SeriesDoNotGrowWithMessages(t *testing.T) {
	series := func(messages int) (n int) {
		inWorld(t, func(w *world) {
			tx := w.store.Begin()
			for i := range messages {
				require.NoError(w, w.tel.Publisher(w.store.Publisher(tx)).Publish("orders", of(fmt.Sprintf("order-%d", i%1000), msg(fmt.Sprint(i)))))
			}
			require.NoError(w, tx.Commit())
			w.forward(10 * time.Second)
			require.Len(w, w.broker.accepted, messages)
			for _, m := range w.metrics() {
				n += len(sums(m))
			}
		}, func(c *tracing.Config) { c.TracerProvider = noop.NewTracerProvider() })
		return n
	}
	require.Equal(t, series(1), series(10_000))
}

// A lease that was lost is told from one that was given back.
func TestMetrics_LeasesLostAndReleased(t *testing.T) {
	inWorld(t, func(w *world) {
		h := w.tel.Forwarder()
		lease := func(epoch int64, shards ...int) backends.Lease {
			l := backends.Lease{Owner: "me"}
			for _, s := range shards {
				l.Shards = append(l.Shards, backends.ShardLease{Shard: s, Epoch: epoch})
			}
			return l
		}
		h.Read(w.Context(), nil, 0, nil)
		h.Leased(w.Context(), lease(1, 1, 2, 3), nil)
		h.Leased(w.Context(), backends.Lease{}, errTry) // says nothing
		h.Released(w.Context(), lease(1, 3), nil)
		h.Leased(w.Context(), lease(1, 1), nil) // 2 was lost
		h.Leased(w.Context(), lease(2, 1), nil) // 1 was lost, and gained again
		got := w.metrics()
		require.Equal(w, map[string]int64{
			"{outbox.lease.event=acquired outbox.name=outbox}": 4,
			"{outbox.lease.event=released outbox.name=outbox}": 1,
			"{outbox.lease.event=lost outbox.name=outbox}":     2,
		}, sums(got["outbox.lease.transitions"]))
		require.EqualValues(w, 1, sums(got["outbox.shard.owned"])["{outbox.name=outbox}"])
	})
}
