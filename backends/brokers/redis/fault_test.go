package redis_test

import (
	"testing"

	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/internal/testenv/private"
)

func TestFault_ConnectionCutHalfOpenSlow(t *testing.T) {
	server(t) // where there is no Redis, there is none to be started
	s := private.StartProxied(t, "redis")
	h := open(t, s.Proxy, redis.Config{})
	private.Cuts(s, private.NewSender(t, h, h.Topic()))
}

// With appendfsync always nothing acknowledged is lost in a crash.
func TestFault_ServerStoppedKilled(t *testing.T) {
	server(t)
	s := private.Start(t, "redis", "--appendfsync always")
	h := open(t, s.Addr, redis.Config{})
	private.Kills(s, private.NewSender(t, h, h.Topic()))
}
