package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends/stores/postgres"
)

// bench is what scenarios share.
type bench struct {
	options
	out             io.Writer
	url             string
	pool            *pgxpool.Pool
	seeds           []string
	admin           *kadm.Client
	kafka           *kgo.Client
	targets, missed int
}

func newBench(ctx context.Context, o options, out io.Writer) (*bench, error) {
	url, seeds := os.Getenv("OUTMILL_POSTGRES_URL"), os.Getenv("OUTMILL_KAFKA_BROKERS")
	if url == "" || seeds == "" {
		return nil, errors.New("OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS must be set: make services")
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("OUTMILL_POSTGRES_URL cannot be used")
	}
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(seeds, ",")...))
	if err != nil {
		return nil, err
	}
	return &bench{
		options: o, out: out, url: url, pool: pool, seeds: strings.Split(seeds, ","),
		kafka: client, admin: kadm.NewClient(client),
	}, pool.Ping(ctx)
}

func (b *bench) close() error {
	b.kafka.Close()
	b.pool.Close()
	return nil
}

func (b *bench) printf(format string, args ...any) { _, _ = fmt.Fprintf(b.out, format, args...) }

func (b *bench) versions(ctx context.Context) string {
	var pg, fsync string
	_ = b.pool.QueryRow(ctx, "select current_setting('server_version'), current_setting('fsync')").Scan(&pg, &fsync)
	return fmt.Sprintf("Postgres %s (fsync %s), Kafka at %s, %s, %d cores; median (min–max) of %d runs after one that is not counted",
		pg, fsync, strings.Join(b.seeds, ","), runtime.Version(), runtime.NumCPU(), b.runs)
}

// store makes an outbox in a schema of its own; drop takes it away.
func (b *bench) store(ctx context.Context, cfg postgres.Config) (s *postgres.Store, drop func(), err error) {
	if cfg.Schema == "" {
		cfg.Schema = newSchema()
	}
	s, err = postgres.New(b.pool, cfg)
	if err != nil {
		return nil, nil, err
	}
	drop = func() {
		_, _ = b.pool.Exec(context.WithoutCancel(ctx), "drop schema if exists "+cfg.Schema+" cascade")
	}
	if err := s.Migrate(ctx); err != nil {
		drop()
		return nil, nil, err
	}
	return s, drop, nil
}

func newSchema() string { return "bench_" + strings.ToLower(rand.Text()[:12]) }

// topic makes a topic of twelve partitions; drop takes it away.
func (b *bench) topic(ctx context.Context) (name string, drop func(), err error) {
	name = "bench-" + strings.ToLower(rand.Text()[:12])
	_, err = b.admin.CreateTopic(ctx, 12, 1, nil, name)
	return name, func() { _, _ = b.admin.DeleteTopics(context.WithoutCancel(ctx), name) }, err
}

// sample is the values of one measurement.
type sample struct {
	name   string
	unit   string
	values []float64
}

func (s sample) median() float64 { return quantile(s.values, 0.5) }

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

func (b *bench) show(s sample) {
	b.printf("%-58s %12s %s (%s–%s)\n", s.name, number(s.median()), s.unit, number(slices.Min(s.values)), number(slices.Max(s.values)))
}

func number(f float64) string {
	switch {
	case f >= 1000:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// repeat measures once to warm up and then as often as asked.
func (b *bench) repeat(name, unit string, once func() (float64, error)) (sample, error) {
	s := sample{name: name, unit: unit}
	for i := range b.runs + 1 {
		v, err := once()
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if i > 0 {
			s.values = append(s.values, v)
		}
	}
	b.show(s)
	return s, nil
}

// atLeast and atMost judge a figure against its target.
func (b *bench) atLeast(name string, got, want float64, unit string) {
	b.judge(name, got, want, unit, "≥", got >= want)
}

func (b *bench) atMost(name string, got, want float64, unit string) {
	b.judge(name, got, want, unit, "≤", got <= want)
}

func (b *bench) judge(name string, got, want float64, unit, sign string, ok bool) {
	verdict := "met"
	b.targets++
	if !ok {
		verdict = "MISSED"
		b.missed++
	}
	b.printf("  → %-54s %12s %-4s target %s %s: %s\n", name, number(got), unit, sign, number(want), verdict)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
