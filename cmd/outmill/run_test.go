package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// printed waits until so many lines have been printed.
func (p *process) printed(n int) {
	p.Helper()
	require.Eventually(p, func() bool { return strings.Count(p.out.String(), "\n") >= n }, limit, 5*time.Millisecond, "%d lines never came", n)
}

func TestRun_SQLiteToStdout(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	want := s.publish("orders", 500, 20)
	p := start(t, nil, "run", "--config", file(t, "store: sqlite:"+s.path, "broker: 'stdout:'", "http: off", "log: {format: json}"))
	p.printed(500)
	for id := range s.publish("orders", 100, 20) {
		want[id] = true
	}
	p.printed(600)
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, p.code(), p.err.String())

	got := lines(t, p.out.String())
	inOrder(t, want, got)
	require.Equal(t, "orders", got[0].Topic)
	require.JSONEq(t, `{"n": 0}`, string(first(got, "orders-0").Payload))
	b, err := s.store.Backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Ready+b.Delayed+b.Dead)
	require.Empty(t, b.Owners, "the lease was given back")
	require.Contains(t, p.err.String(), `"msg":"outmill has stopped"`)
}

// address waits for the line that says where probes are served.
func (p *process) address() string {
	p.Helper()
	p.says("address=")
	return "http://" + regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(p.err.String())[1]
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func TestRun_ProbesAndMetrics(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := start(t, []string{"OUTMILL_STORE=sqlite:" + s.path, "OUTMILL_BROKER=stdout:", "OUTMILL_METRICS_INTERVAL=1ms"}, "run", "--http", "127.0.0.1:0", "--metrics-name", "shop")
	at := p.address()
	require.Eventually(t, func() bool { code, _ := get(t, at+"/readyz"); return code == http.StatusOK }, limit, 10*time.Millisecond)
	code, body := get(t, at+"/livez")
	require.Equal(t, http.StatusOK, code, body)

	s.publish("orders", 300, 7)
	p.printed(300)
	var page string
	require.Eventually(t, func() bool {
		_, page = get(t, at+"/metrics")
		return strings.Contains(page, `outbox_backlog_count{outbox_message_state="ready",outbox_name="shop"} 0`) &&
			strings.Contains(page, `outbox_publish_delay_seconds_count{messaging_destination_name="orders",outbox_name="shop"} 300`)
	}, limit, 20*time.Millisecond)
	for _, series := range []string{
		`messaging_client_sent_messages_total{error_type="",messaging_destination_name="orders",messaging_operation_name="publish",messaging_system="stdout",outbox_name="shop"} 300`,
		`outbox_shard_owned{outbox_name="shop"} 64`, `outbox_shard_limit{outbox_name="shop"} 64`, `outbox_shard_unowned{outbox_name="shop"} 0`,
		`outbox_lease_transitions_total{outbox_lease_event="acquired",outbox_name="shop"} 64`, `outbox_forwarders_alive{outbox_name="shop"} 1`,
		`outbox_dead_letters_total{messaging_destination_name="orders",outbox_dead_letter_reason="permanent",outbox_name="shop"} 0`,
		`outbox_forwarder_inflight_count{outbox_name="shop"} 0`, `outbox_backlog_age_seconds{outbox_name="shop"} 0`, "go_goroutines ", "process_cpu_seconds_total ",
	} {
		require.Contains(t, page, series)
	}
	code, _ = get(t, at+"/nonesuch")
	require.Equal(t, http.StatusNotFound, code)
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, p.code(), p.err.String())
}

// The tables are missing: no restart helps, and the code says so.
func TestRun_WithoutTables(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	set := []string{"OUTMILL_STORE=sqlite:" + path, "OUTMILL_BROKER=stdout:", "OUTMILL_HTTP=off"}
	for _, args := range [][]string{{"run"}, {"status"}, {"migrate", "status"}, {"dead", "list"}} {
		code, _, said := outmill(t, set, args...)
		require.Equal(t, exitSchema, code, said)
		require.Contains(t, said, "run: outmill migrate up")
		require.NoFileExists(t, path, "a command that only looks makes nothing")
	}
	store, err := sqlite.Open(t.Context(), path, sqlite.Config{}) // a file, but no tables
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	code, _, said := outmill(t, set, "run")
	require.Equal(t, exitSchema, code, said)
	code, out, said := outmill(t, set, "migrate", "up")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "as this version needs them")
	code, _, said = outmill(t, set, "migrate", "status")
	require.Equal(t, exitOK, code, said)
	code, out, said = outmill(t, set, "migrate", "print")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, `create table "outbox"`)
}

// stuck is outmill that publishes into a pipe which nobody reads.
func stuck(t *testing.T, environ ...string) (*process, *shop) {
	t.Helper()
	s := newShop(t)
	s.publish("orders", 2000, 20) // more than a pipe holds
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	p := prepare(t, append(environ, "OUTMILL_STORE=sqlite:"+s.path, "OUTMILL_BROKER=stdout:", "OUTMILL_HTTP=off"), "run")
	p.cmd.Stdout = w
	p.begin()
	b := make([]byte, 1)
	_, err = r.Read(b) // it is at it
	require.NoError(t, err)
	return p, s
}

func TestRun_ASecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	p, s := stuck(t)
	p.signal(syscall.SIGTERM)
	p.says("a second signal stops at once")
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitUnclean, p.code(), p.err.String())
	s.everythingIsThere(2000)
}

func TestRun_AStopThatTakesTooLong(t *testing.T) {
	t.Parallel()
	p, s := stuck(t, "OUTMILL_FORWARDER_SHUTDOWN=1s")
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitUnclean, p.code(), p.err.String())
	require.Contains(t, p.err.String(), "will be sent again")
	s.everythingIsThere(2000)
}

// everythingIsThere: what the broker took no part of stays in the outbox.
func (s *shop) everythingIsThere(n int64) {
	s.Helper()
	b, err := s.store.Backlog(s.Context())
	require.NoError(s, err)
	require.Equal(s, n, b.Ready+b.Delayed)
	require.Zero(s, b.Dead, "a stop costs nobody an attempt")
}

func TestRun_TwoAtOnceAndOneDies(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	set := []string{"OUTMILL_STORE=sqlite:" + s.path, "OUTMILL_BROKER=stdout:", "OUTMILL_HTTP=off", "OUTMILL_FORWARDER_LEASE=2s", "OUTMILL_FORWARDER_PUBLISH_TIMEOUT=1s"}
	a, b := start(t, set, "run", "--name", "a"), start(t, set, "run", "--name", "b")
	require.Eventually(t, func() bool {
		l, err := s.store.Backlog(t.Context())
		return err == nil && len(l.Owners) == 2
	}, limit, 10*time.Millisecond)
	want := s.publish("orders", 1000, 50)
	require.Eventually(t, func() bool {
		return strings.Count(a.out.String()+b.out.String(), "\n") >= 1000
	}, limit, 10*time.Millisecond)
	require.NoError(t, a.cmd.Process.Kill())
	for id := range s.publish("orders", 500, 50) {
		want[id] = true
	}
	require.Eventually(t, func() bool {
		l, err := s.store.Backlog(t.Context())
		return err == nil && l.Ready+l.Delayed == 0
	}, limit, 10*time.Millisecond, "the other takes over")
	b.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, b.code(), b.err.String())
	seen := map[string]bool{}
	for _, l := range lines(t, a.out.String()+b.out.String()) {
		require.True(t, want[l.MessageID])
		seen[l.MessageID] = true
	}
	require.Len(t, seen, len(want))
}

func TestRun_AnAddressInUse(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	set := []string{"OUTMILL_STORE=sqlite:" + s.path, "OUTMILL_BROKER=stdout:"}
	p := start(t, set, "run", "--http", "127.0.0.1:0")
	at := strings.TrimPrefix(p.address(), "http://")
	code, _, said := outmill(t, set, "run", "--http", at)
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, "http: cannot listen on "+at)
}

func TestHealth_WhatAProbeIsTold(t *testing.T) {
	h := newHealth(failing{"the database is down"}, failing{}, time.Minute)
	require.EqualError(t, h.ready(t.Context()), "starting: no heartbeat yet")
	require.NoError(t, h.live())
	h.leased(t.Context(), backends.Lease{}, fmt.Errorf("no route"))
	require.ErrorContains(t, h.ready(t.Context()), "no route")
	h.leased(t.Context(), backends.Lease{}, nil)
	require.EqualError(t, h.ready(t.Context()), "the store does not answer: the database is down")
	require.NoError(t, h.live(), "a restart would not help")
	h.goodBeat = time.Now().Add(-2 * time.Minute)
	require.EqualError(t, h.ready(t.Context()), "the last heartbeat is older than the lease")
	h.beat = h.goodBeat.Add(-time.Second)
	require.ErrorContains(t, h.live(), "no heartbeat for 2m1s")
	h.stop()
	require.EqualError(t, h.ready(t.Context()), "stopping")
	require.NoError(t, h.live())
}

// failing is a server that does not answer, or does.
type failing struct{ why string }

func (f failing) Ping(context.Context) error {
	if f.why == "" {
		return nil
	}
	return fmt.Errorf("%s", f.why)
}
