package kafka_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/internal/testenv"
)

// private is a Kafka of the test's own, reached through a proxy, so that it may
// be cut off, stopped and killed.
type private struct {
	t     *testing.T
	port  int
	proxy string // the proxy's address
	api   string // of the proxy server
	name  string
}

func startPrivate(t *testing.T) *private {
	t.Helper()
	api := "http://" + testenv.Server(t, testenv.Toxiproxy)
	seeds(t) // where there is no Kafka, there is none to be started
	p := &private{t: t, port: freePort(t), api: api, name: "kafka-" + watermill.NewShortUUID()}
	p.proxy = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p.call(http.MethodPost, "/proxies", map[string]any{"name": p.name, "listen": p.proxy, "upstream": fmt.Sprintf("127.0.0.1:%d", p.port), "enabled": true})
	p.script("start")
	t.Cleanup(func() {
		p.call(http.MethodDelete, "/proxies/"+p.name, nil)
		p.script("wipe")
	})
	return p
}

// freePort finds a port whose neighbour, the controller's, is free too.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		next, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		require.NoError(t, l.Close())
		if err == nil {
			require.NoError(t, next.Close())
			return port
		}
	}
	t.Fatal("no two free ports side by side")
	return 0
}

// script runs the service script over this Kafka.
func (p *private) script(verb string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "..", "scripts", "services", "kafka.sh"), verb)
	cmd.Env = append(os.Environ(), "OUTMILL_KAFKA_PORT="+strconv.Itoa(p.port),
		"OUTMILL_KAFKA_ARGS=--override advertised.listeners=PLAINTEXT://"+p.proxy)
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, "kafka.sh %s: %s", verb, out)
}

// signal sends a signal to the server that the script started.
func (p *private) signal(s syscall.Signal) {
	p.t.Helper()
	home := os.Getenv("OUTMILL_SERVICES_DIR")
	if home == "" {
		cache, err := os.UserCacheDir()
		require.NoError(p.t, err)
		home = filepath.Join(cache, "outmill-services")
	}
	text, err := os.ReadFile(filepath.Join(home, "run", fmt.Sprintf("kafka-%d", p.port), "kafka.pid"))
	require.NoError(p.t, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	require.NoError(p.t, err)
	require.NoError(p.t, syscall.Kill(pid, s))
}

// call asks the proxy server for something.
func (p *private) call(method, path string, body any) {
	p.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(p.t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.api+path, bytes.NewReader(text))
	require.NoError(p.t, err)
	req.Close = true // leave no idle connection behind
	resp, err := http.DefaultClient.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	require.Less(p.t, resp.StatusCode, 300, "%s %s: %s", method, path, answer)
}

func (p *private) enable(on bool) {
	p.t.Helper()
	p.call(http.MethodPost, "/proxies/"+p.name, map[string]any{"enabled": on})
}

// withToxic spoils the connection while do runs.
func (p *private) withToxic(kind, stream string, attributes map[string]any, do func()) {
	p.t.Helper()
	p.call(http.MethodPost, "/proxies/"+p.name+"/toxics", map[string]any{
		"name": "toxic", "type": kind, "stream": stream, "attributes": attributes,
	})
	do()
	p.call(http.MethodDelete, "/proxies/"+p.name+"/toxics/toxic", nil)
}

// sender publishes numbered records of a few aggregates until all are accepted,
// as a forwarder does.
type sender struct {
	*harness
	topic string
	next  int
}

const senders = 7 // aggregates

func (s *sender) batch(n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			MessageID: watermill.NewUUID(), Topic: s.topic, Aggregate: "a" + strconv.Itoa(s.next%senders),
			Sequence: int64(s.next/senders + 1), Payload: make([]byte, 300), CreatedAt: time.Now(),
		}
		s.next++
	}
	return out
}

// publish makes one attempt and returns what is left.
func (s *sender) publish(records []backends.Record, limit time.Duration) (left []backends.Record, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	err = s.broker.Publish(ctx, records)
	var partial *backends.PartialError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &partial):
		return records, err
	}
	for _, f := range partial.Failures {
		require.NotEqual(s.t, backends.PermanentFailure, backends.ClassOf(f.Err), "a fault of the network is not the record's: %v", f.Err)
		left = append(left, records[f.Index])
	}
	return left, err
}

func (s *sender) all(records []backends.Record) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); len(records) > 0; {
		require.True(s.t, time.Now().Before(end), "%d records are not accepted", len(records))
		if records, _ = s.publish(records, 2*time.Second); len(records) > 0 {
			pause(s.t, 50*time.Millisecond)
		}
	}
}

func pause(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// check reads the topic: complete, and in order for a consumer that drops repeats.
func (s *sender) check() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	seen, last := map[string]bool{}, map[string]int{}
	for n := s.next; len(seen) < s.next; n++ {
		got, err := s.Read(ctx, s.topic, n)
		require.NoError(s.t, err)
		clear(seen)
		clear(last)
		for _, m := range got {
			if seen[m.ID] {
				continue
			}
			seen[m.ID] = true
			a := m.Headers[backends.AggregateKey]
			require.Equal(s.t, strconv.Itoa(last[a]+1), m.Headers[backends.SequenceKey], "aggregate %s", a)
			last[a]++
		}
	}
}

func TestFault_CutHalfOpenStoppedKilled(t *testing.T) {
	p := startPrivate(t)
	h := open(t, []string{p.proxy}, kafka.Config{})
	s := &sender{harness: h, topic: h.Topic()}
	s.all(s.batch(100))

	// Connections are cut while batches are on their way, again and again.
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(40 * time.Millisecond):
			}
			p.enable(false)
			pause(t, 20*time.Millisecond)
			p.enable(true)
		}
	}()
	for range 40 {
		s.all(s.batch(200))
	}
	close(stop)
	<-done

	// Half open: nothing comes back, and nobody says so.
	unheard := s.batch(50)
	p.withToxic("timeout", "downstream", map[string]any{"timeout": 0}, func() {
		start := time.Now()
		left, err := s.publish(unheard, time.Second)
		require.Error(t, err)
		require.Len(t, left, 50)
		require.Less(t, time.Since(start), 3*time.Second, "the limit was not kept")
	})
	s.all(unheard)

	// Latency is slow, and no failure.
	p.withToxic("latency", "downstream", map[string]any{"latency": 300}, func() {
		left, err := s.publish(s.batch(50), 30*time.Second)
		require.NoError(t, err)
		require.Empty(t, left)
	})

	// The server stands still. Neither Publish nor Close waits for it.
	p.signal(syscall.SIGSTOP)
	start := time.Now()
	records := s.batch(50)
	left, err := s.publish(records, time.Second)
	require.Error(t, err)
	require.Less(t, time.Since(start), 3*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	start = time.Now()
	_ = h.broker.Close(ctx) // may say that a connection was still open
	cancel()
	require.Less(t, time.Since(start), 3*time.Second)
	p.signal(syscall.SIGCONT)
	h.broker, err = kafka.New(kafka.Config{Brokers: []string{p.proxy}})
	require.NoError(t, err)
	s.all(left)

	// kill -9 in the middle of a batch. The same broker object goes on.
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		pause(t, 30*time.Millisecond)
		p.signal(syscall.SIGKILL)
	}()
	var waiting []backends.Record
	for waiting == nil {
		waiting, _ = s.publish(s.batch(500), 2*time.Second)
	}
	<-killed
	_, err = s.publish(waiting, 5*time.Second)
	require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
	p.script("start")
	back := time.Now()
	s.all(waiting)
	require.Less(t, time.Since(back), 10*time.Second, "not recovered within ten seconds of the server's return")
	s.check()
	closing, end := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer end()
	require.NoError(t, h.broker.Close(closing))
}
