package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends/stores/postgres"
)

// bench is what scenarios share.
type bench struct {
	options
	out      io.Writer
	scenario string // that is running
	report   report
	schemas  []string // made so far
	repeats  int      // messages that a topic held more than once

	name  string // of this process's sessions in the database
	url   string
	pool  *pgxpool.Pool
	seeds []string
	admin *kadm.Client
	kafka *kgo.Client
}

func newBench(ctx context.Context, o options, out io.Writer) (*bench, error) {
	url, seeds := os.Getenv("OUTMILL_POSTGRES_URL"), os.Getenv("OUTMILL_KAFKA_BROKERS")
	if url == "" || seeds == "" {
		return nil, errors.New("OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS must be set: make services")
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("OUTMILL_POSTGRES_URL cannot be used") // not quoted: it may hold a password
	}
	cfg.MaxConns = 16
	name := "outmill-bench-" + strings.ToLower(rand.Text()[:12])
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(seeds, ",")...))
	if err != nil {
		pool.Close()
		return nil, err
	}
	b := &bench{
		options: o, out: out, name: name, url: url, pool: pool, seeds: strings.Split(seeds, ","),
		kafka: client, admin: kadm.NewClient(client),
	}
	if err := errors.Join(pool.Ping(ctx), client.Ping(ctx)); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	b.kafka.Close()
	b.pool.Close()
}

// store makes an outbox in a schema of its own; drop takes it away.
func (b *bench) store(ctx context.Context, cfg postgres.Config) (s *postgres.Store, drop func(), err error) {
	if cfg.Schema == "" {
		cfg.Schema = b.newSchema()
	}
	s, err = postgres.New(b.pool, cfg)
	if err != nil {
		return nil, nil, err
	}
	drop = func() { b.dropSchema(ctx, cfg.Schema) }
	if err := s.Migrate(ctx); err != nil {
		drop()
		return nil, nil, err
	}
	return s, drop, nil
}

// newSchema names a schema. Whoever makes it drops it.
func (b *bench) newSchema() string {
	name := "bench_" + strings.ToLower(rand.Text()[:12])
	b.schemas = append(b.schemas, name)
	return name
}

func (b *bench) dropSchema(ctx context.Context, name string) {
	_, _ = b.pool.Exec(context.WithoutCancel(ctx), "drop schema if exists "+name+" cascade")
}

// with adds a parameter to the server's URL.
func (b *bench) with(parameter string) string {
	if strings.Contains(b.url, "?") {
		return b.url + "&" + parameter
	}
	return b.url + "?" + parameter
}

// topic makes a topic of twelve partitions; drop takes it away.
func (b *bench) topic(ctx context.Context) (name string, drop func(), err error) {
	name = "bench-" + strings.ToLower(rand.Text()[:12])
	_, err = b.admin.CreateTopic(ctx, 12, 1, nil, name)
	return name, func() { _, _ = b.admin.DeleteTopics(context.WithoutCancel(ctx), name) }, err
}
