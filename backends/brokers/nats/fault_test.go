package nats_test

import (
	"testing"

	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/internal/testenv/private"
)

func TestFault_ConnectionCutHalfOpenSlow(t *testing.T) {
	server(t) // where there is no NATS, there is none to be started
	s := private.StartProxied(t, "nats")
	h := open(t, "nats://"+s.Proxy, nats.Config{})
	private.Cuts(s, private.NewSender(t, h, h.Topic()))
}

func TestFault_ServerStoppedKilled(t *testing.T) {
	server(t)
	s := private.Start(t, "nats")
	h := open(t, "nats://"+s.Addr, nats.Config{})
	private.Kills(s, private.NewSender(t, h, h.Topic()))
}
