package redis_test

import (
	"testing"

	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/internal/testenv/private"
)

// BenchmarkPublish compares with watermill-redisstream's publisher in 64 lanes.
func BenchmarkPublish(b *testing.B) {
	addr := server(b)
	h := open(b, addr, redis.Config{})
	private.Compare(b, h.broker, lanes(b, addr), h.Topic())
}
