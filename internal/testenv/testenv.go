// Package testenv finds the servers that tests need and is the one place where
// a test may be skipped.
package testenv

import (
	"os"
	"testing"
)

// Variables that scripts/services prints and that tests read.
const (
	PostgresURL  = "OUTMILL_POSTGRES_URL"
	PgBouncerURL = "OUTMILL_PGBOUNCER_URL"
	KafkaBrokers = "OUTMILL_KAFKA_BROKERS"
	Toxiproxy    = "OUTMILL_TOXIPROXY_ADDR"
	MySQLDSN     = "OUTMILL_MYSQL_DSN"
	MariaDBDSN   = "OUTMILL_MARIADB_DSN"

	// Required makes a missing server a failure.
	Required = "OUTMILL_TEST_SERVICES"
	// Long turns on the tests of `make test-long`.
	LongLane = "OUTMILL_TEST_LONG"
)

// Server returns the address in a variable. Without it the test is skipped, or
// fails where servers are required.
func Server(t testing.TB, variable string) string {
	t.Helper()
	addr := os.Getenv(variable)
	if addr == "" {
		if os.Getenv(Required) != "" {
			t.Fatalf("%s is not set, and %s says that servers are there: run make services", variable, Required)
		}
		t.Skipf("needs a server: %s is not set (make test-services)", variable)
	}
	return addr
}

// Long reports whether the long lane runs.
func Long() bool { return os.Getenv(LongLane) != "" }
