package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRun_SQLiteToStdout(t *testing.T) {
	s := newShop(t)
	want := s.publish("orders", 500, 20)
	p := start(t, nil, "run", "--config", file(t, "store: sqlite:"+s.path, "broker: 'stdout:'", "http: off", "log: {format: json}"))
	require.Eventually(t, func() bool { return strings.Count(p.out.String(), "\n") == 500 }, limit, 5*time.Millisecond)
	for id := range s.publish("orders", 100, 20) {
		want[id] = true
	}
	require.Eventually(t, func() bool { return strings.Count(p.out.String(), "\n") == 600 }, limit, 5*time.Millisecond)
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, p.code(), p.err.String())

	got := lines(t, p.out.String())
	inOrder(t, want, got)
	require.Equal(t, "orders", got[0].Topic)
	require.JSONEq(t, `{"n": 0}`, string(first(got, "order-0").Payload))
	b, err := s.store.Backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Ready+b.Delayed+b.Dead)
	require.Empty(t, b.Owners, "the lease was given back")
	require.Contains(t, p.err.String(), `"msg":"outmill has stopped"`)
}
