package main

import (
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/settings"
)

// config is everything that a file, the environment and flags may say.
type config struct {
	Store, StoreFile   string
	Broker, BrokerFile string

	LogFormat string
	LogLevel  slog.Level

	HTTP string // host:port, or off

	MetricsName     string
	MetricsInterval time.Duration

	Forwarder forwarder.Config
}

const httpOff = "off"

func defaults() config {
	return config{
		LogFormat: "text", LogLevel: slog.LevelInfo, HTTP: "127.0.0.1:8080",
		MetricsName: "default", MetricsInterval: 5 * time.Second,
	}
}

func name[T any](name string, value T) settings.Option[T] {
	return settings.Option[T]{Name: name, Value: value}
}

// all is the one list of settings: the file's keys, the variables, the flags and
// the documentation are made of it.
func all() []settings.Setting[config] {
	text, list := settings.Text[config], settings.List[config]
	number, size, duration := settings.Number[config], settings.Size[config], settings.Duration[config]
	return []settings.Setting[config]{
		settings.Hidden(text("store", "", "none", "URL of the store. It may hold a password, so it is never shown whole.",
			func(c *config) *string { return &c.Store })),
		text("store_file", "", "none", "File that holds the URL of the store and nothing else, such as a mounted secret.",
			func(c *config) *string { return &c.StoreFile }),
		settings.Hidden(text("broker", "", "none", "URL of the broker.", func(c *config) *string { return &c.Broker })),
		text("broker_file", "", "none", "File that holds the URL of the broker and nothing else.",
			func(c *config) *string { return &c.BrokerFile }),

		settings.Choice("log.format", "", "text", "How the log is written, to standard error.",
			func(c *config) *string { return &c.LogFormat }, name("text", "text"), name("json", "json")),
		settings.Choice("log.level", "", "info", "From which level on.", func(c *config) *slog.Level { return &c.LogLevel },
			name("debug", slog.LevelDebug), name("info", slog.LevelInfo), name("warn", slog.LevelWarn), name("error", slog.LevelError)),
		text("http", "", "127.0.0.1:8080", "Where /livez, /readyz and /metrics are served: host:port, :port for all addresses, or off.",
			func(c *config) *string { return &c.HTTP }),
		text("metrics.name", "", "default", "The label outbox_name of all metrics, to tell several outboxes apart.",
			func(c *config) *string { return &c.MetricsName }),
		duration("metrics.interval", "", "5s", "For how long a measured backlog is shown before it is measured anew. Only a scrape measures.",
			func(c *config) *time.Duration { return &c.MetricsInterval }),

		text("forwarder.name", "Name", "the host's name", "How this forwarder appears in the list of owners. A random part is added.",
			func(c *config) *string { return &c.Forwarder.Name }),
		number("forwarder.workers", "Workers", "4", "How many read, publish and settle side by side.",
			func(c *config) *int { return &c.Forwarder.Workers }),
		number("forwarder.batch", "Batch", "1000", "How many records a worker takes at a time.",
			func(c *config) *int { return &c.Forwarder.Batch }),
		size("forwarder.batch_bytes", "BatchBytes", "4MiB", "How many bytes of payload a worker takes at a time.",
			func(c *config) *int { return &c.Forwarder.BatchBytes }),
		duration("forwarder.publish_timeout", "PublishTimeout", "10s", "Limit of one call to the broker.",
			func(c *config) *time.Duration { return &c.Forwarder.PublishTimeout }),
		duration("forwarder.lease", "Lease", "15s", "How long records may wait for another forwarder after theirs has died. At least one and a half times forwarder.publish_timeout.",
			func(c *config) *time.Duration { return &c.Forwarder.Lease }),
		duration("forwarder.shutdown", "Shutdown", "30s", "How long a stop may take. Let the supervisor wait a little longer.",
			func(c *config) *time.Duration { return &c.Forwarder.Shutdown }),
		number("forwarder.max_attempts", "MaxAttempts", "10", "How often a record is tried before it is given up. Negative: no limit.",
			func(c *config) *int { return &c.Forwarder.MaxAttempts }),
		duration("forwarder.retry_min", "RetryMin", "1s", "Shortest wait before a record's next attempt; it doubles each time.",
			func(c *config) *time.Duration { return &c.Forwarder.RetryMin }),
		duration("forwarder.retry_max", "RetryMax", "5m", "Longest wait before a record's next attempt.",
			func(c *config) *time.Duration { return &c.Forwarder.RetryMax }),
		duration("forwarder.poll_min", "PollMin", "5ms", "Shortest wait before the next look for records after one that found none.",
			func(c *config) *time.Duration { return &c.Forwarder.PollMin }),
		duration("forwarder.poll_max", "PollMax", "1s", "Longest wait before the next look for records.",
			func(c *config) *time.Duration { return &c.Forwarder.PollMax }),
		settings.Choice("forwarder.poison", "Poison", "park", "What happens to a record that is given up: its aggregate is parked, it alone is skipped, or it is tried for ever and blocks its aggregate.",
			func(c *config) *forwarder.Poison { return &c.Forwarder.Poison },
			name("park", forwarder.Park), name("skip", forwarder.Skip), name("block", forwarder.Block)),
		list("forwarder.allow", "Allow", "all topics", "The topics that may be sent to. Records of others are given up without being sent.",
			func(c *config) *[]string { return &c.Forwarder.Allow }),
	}
}

// flagOf is a key as a flag: forwarder.batch_bytes is --batch-bytes, log.level
// is --log-level.
func flagOf(key string) string {
	key = strings.TrimPrefix(key, "forwarder.")
	return strings.NewReplacer(".", "-", "_", "-").Replace(key)
}

// variableOf is a key as a variable: OUTMILL_FORWARDER_BATCH_BYTES.
func variableOf(key string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

const (
	prefix         = "OUTMILL_"
	configVariable = prefix + "CONFIG"
)

// logger writes to standard error, so that stdout: has standard output to itself.
func (c config) logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
