// Package walls proves what a program links that imports one part of Outmill.
package walls

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/outmill/outmill/"

// clients are the drivers, brokers' clients and test tools that a program must
// not link unless it asks for them.
var clients = []string{
	"github.com/jackc/pgx", "github.com/go-sql-driver", "modernc.org/sqlite", "github.com/lib/pq",
	"github.com/twmb/franz-go", "github.com/IBM/sarama", "github.com/rabbitmq", "github.com/nats-io", "github.com/redis",
	"github.com/pressly/goose", "go.opentelemetry.io", "github.com/stretchr/testify", "testing",
}

// Each package, and which of the clients it may link.
func TestWalls_WhatAPackageLinks(t *testing.T) {
	for pkg, allowed := range map[string][]string{
		"backends":                  nil,
		"forwarder":                 nil,
		"middleware":                nil,
		"backends/stores/memory":    nil,
		"backends/stores/postgres":  {"github.com/jackc/pgx", "github.com/pressly/goose"},
		"backends/stores/sqlite":    {"modernc.org/sqlite", "github.com/pressly/goose"},
		"backends/brokers/pubsub":   nil,
		"backends/brokers/kafka":    {"github.com/twmb/franz-go"},
		"backends/brokers/rabbitmq": {"github.com/rabbitmq"},
		"backends/brokers/nats":     {"github.com/nats-io"},
		"backends/brokers/redis":    {"github.com/redis"},
		"backends/stores/mysql":     {"github.com/go-sql-driver", "github.com/pressly/goose"},
		"tracing":                   {"go.opentelemetry.io"},
		"consumer":                  nil,
	} {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+pkg).CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, dep := range strings.Fields(string(out)) {
				for _, client := range clients {
					if dep == client || strings.HasPrefix(dep, client+"/") {
						require.Contains(t, allowed, client, "%s links %s", pkg, dep)
					}
				}
			}
		})
	}
}
