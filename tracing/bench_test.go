package tracing_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/testenv"
	"github.com/outmill/outmill/tracing"
)

// variants are what is compared, in turn within each iteration so that they have
// the same server at the same time.
type variant struct {
	name string
	tel  *tracing.Telemetry // nil: none
	took time.Duration      // the quickest round
}

func variants(b *testing.B) []*variant {
	b.Helper()
	none, err := tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	require.NoError(b, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	b.Cleanup(func() { require.NoError(b, provider.Shutdown(context.WithoutCancel(b.Context()))) })
	all, err := tracing.New(tracing.Config{
		TracerProvider: provider, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
	})
	require.NoError(b, err)
	return []*variant{{name: "plain"}, {name: "no-provider", tel: none}, {name: "everything", tel: all}}
}

// compare runs each variant once in each iteration and reports what its quickest
// round cost more than that of the plain one, in percent: what else the machine
// does only ever makes a round slower. A first round is not counted.
func compare(b *testing.B, run func(v *variant) time.Duration) {
	vs := variants(b)
	for _, v := range vs {
		run(v)
	}
	i := 0
	for b.Loop() {
		for j := range vs {
			v := vs[(i+j)%len(vs)]
			if took := run(v); v.took == 0 || took < v.took {
				v.took = took
			}
		}
		i++
	}
	for _, v := range vs[1:] {
		b.ReportMetric(100*(float64(v.took)/float64(vs[0].took)-1), v.name+"-%")
	}
}

func benchStore(b *testing.B) (*postgres.Store, *pgxpool.Pool) {
	b.Helper()
	pool, err := pgxpool.New(b.Context(), testenv.Server(b, testenv.PostgresURL))
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	schema := "t_" + strings.ToLower(rand.Text()[:12])
	store, err := postgres.New(pool, postgres.Config{Schema: schema})
	require.NoError(b, err)
	require.NoError(b, store.Migrate(b.Context()))
	b.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(b.Context()), "drop schema "+schema+" cascade")
		require.NoError(b, err)
	})
	return store, pool
}

// A transaction with one message, two hundred times.
func BenchmarkOverhead_Publish(b *testing.B) {
	store, pool := benchStore(b)
	compare(b, func(v *variant) time.Duration {
		start := time.Now()
		for i := range 200 {
			require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
				return v.publisher(store.Publisher(tx)).Publish("orders", benchMessage(i))
			}))
		}
		return time.Since(start)
	})
}

func (v *variant) publisher(next message.Publisher) message.Publisher {
	if v.tel == nil {
		return next
	}
	return v.tel.Publisher(next)
}

func benchMessage(i int) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), make([]byte, 512))
	backends.SetAggregate(m, "order-"+strconv.Itoa(i%1000))
	return m
}

// Twenty thousand messages to a broker that costs nothing: the most that tracing
// can come to.
func BenchmarkOverhead_ForwardToNothing(b *testing.B) {
	store, pool := benchStore(b)
	forwardAll(b, store, pool, nothing{}, "orders")
}

// The same to Kafka.
func BenchmarkOverhead_ForwardToKafka(b *testing.B) {
	store, pool := benchStore(b)
	seeds := strings.Split(testenv.Server(b, testenv.KafkaBrokers), ",")
	broker, err := kafka.New(kafka.Config{Brokers: seeds})
	require.NoError(b, err)
	defer func() { require.NoError(b, broker.Close(context.WithoutCancel(b.Context()))) }()
	forwardAll(b, store, pool, broker, kafkaTopic(b, seeds))
}

func forwardAll(b *testing.B, store *postgres.Store, pool *pgxpool.Pool, broker backends.Broker, topic string) {
	const rows = 20_000
	traced := variants(b)[2]
	compare(b, func(v *variant) time.Duration {
		require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			for range rows / 1000 {
				msgs := make([]*message.Message, 1000)
				for i := range msgs {
					msgs[i] = benchMessage(i)
				}
				if err := traced.publisher(store.Publisher(tx)).Publish(topic, msgs...); err != nil {
					return err
				}
			}
			return nil
		}))
		counted := &counting{Broker: broker, want: rows, done: make(chan struct{})}
		cfg := forwarder.Config{Logger: slog.New(slog.DiscardHandler)}
		if v.tel != nil {
			cfg.Hooks = v.tel.Forwarder()
		}
		f, err := forwarder.New(store, counted, cfg)
		require.NoError(b, err)
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- f.Run(ctx) }()
		select {
		case <-counted.done:
		case <-time.After(time.Minute):
			require.Fail(b, "the outbox was not forwarded")
		}
		took := time.Since(start)
		stop()
		require.NoError(b, <-ended)
		return took
	})
}

// What tracing itself takes for a message, which other work on the machine
// disturbs less than a ratio: through a publisher that stores nothing, and in the
// hooks for a batch of a thousand.
func BenchmarkCost(b *testing.B) {
	for _, v := range variants(b) {
		b.Run("publish/"+v.name, func(b *testing.B) {
			pub := v.publisher(&sink{})
			for b.Loop() {
				m := benchMessage(1)
				require.NoError(b, pub.Publish("orders", m))
			}
		})
	}
	for _, v := range variants(b)[1:] {
		b.Run("forward/"+v.name, func(b *testing.B) {
			records := make([]backends.Record, 1000)
			outcomes := make([]backends.Outcome, len(records))
			for i := range records {
				m := benchMessage(i)
				m.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
				records[i] = backends.Record{
					Ref: backends.Ref{Shard: i % 64, ID: int64(i)}, MessageID: m.UUID, Topic: "orders",
					Aggregate: "order-1", Payload: m.Payload, Metadata: m.Metadata,
				}
				outcomes[i] = backends.Outcome{Record: &records[i], Action: backends.Delivered}
			}
			h := v.tel.Forwarder()
			for b.Loop() {
				ctx := h.Read(b.Context(), records, time.Millisecond, nil)
				h.Published(h.Publish(ctx, records), records, time.Millisecond, nil)
				h.Settled(ctx, outcomes, nil)
				h.Done(ctx)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(records)), "ns/record")
		})
	}
}

// counting tells when so many records were accepted.
type counting struct {
	backends.Broker
	n    atomic.Int64
	want int64
	done chan struct{}
}

func (c *counting) Publish(ctx context.Context, records []backends.Record) error {
	err := c.Broker.Publish(ctx, records)
	if n := c.n.Add(int64(len(records))); err == nil && n >= c.want && n-int64(len(records)) < c.want {
		close(c.done)
	}
	return err
}

type nothing struct{}

func (nothing) Publish(context.Context, []backends.Record) error { return nil }
func (nothing) Close(context.Context) error                      { return nil }
