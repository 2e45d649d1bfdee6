package nats_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/internal/testenv/private"
)

// BenchmarkPublish compares with watermill-nats' JetStream publisher in 64 lanes.
func BenchmarkPublish(b *testing.B) {
	url := server(b)
	h := open(b, url, nats.Config{})
	private.Compare(b, h.broker, lanes(b, url), h.stream(jetstream.StreamConfig{}))
}
