package rabbitmq_test

import (
	"context"
	"strconv"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/internal/testenv"
)

// cut is a harness whose server can be cut off and made to hang.
type cut struct {
	*harness
	proxy *proxy
}

func (c cut) Down() { c.proxy.enable(false) }
func (c cut) Up()   { c.proxy.enable(true) }

func (c cut) Freeze() {
	for _, stream := range []string{"upstream", "downstream"} {
		c.proxy.addToxic("timeout", stream, map[string]any{"timeout": 0})
	}
}

func (c cut) Thaw() {
	for _, stream := range []string{"upstream", "downstream"} {
		c.proxy.removeToxic("timeout", stream)
	}
}

func TestBroker_BehindAProxy(t *testing.T) {
	url := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		p := startProxy(t, address(t))
		return cut{open(t, url, rabbitmq.Config{URL: p.url()}), p}
	})
}

// address is the server's host and port.
func address(t testing.TB) string {
	uri, err := amqp.ParseURI(server(t))
	require.NoError(t, err)
	return uri.Host + ":" + strconv.Itoa(uri.Port)
}

// Connections are reset while batches are on their way, again and again.
func TestFault_Reset(t *testing.T) {
	p := startProxy(t, address(t))
	h := open(t, server(t), rabbitmq.Config{URL: p.url()})
	s := &sender{harness: h, topic: h.Topic()}
	s.all(s.batch(100))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
			p.enable(false)
			pause(t, 20*time.Millisecond)
			p.enable(true)
		}
	}()
	for range 20 {
		s.all(s.batch(400))
	}
	close(stop)
	<-done
	s.all(s.batch(40))
	records := s.batch(2000)
	p.withToxic("reset_peer", map[string]any{"timeout": 30}, func() {
		for range 5 {
			records, _ = s.publish(records, 2*time.Second)
		}
	})
	s.all(records)
	s.check()
}

// Slow lines are no failure, or one that is over when they are fast again.
func TestFault_SlowLines(t *testing.T) {
	for name, c := range map[string]struct {
		toxic      string
		attributes map[string]any
		limit      time.Duration
		passes     bool // within the limit
	}{
		"half open":        {"timeout", map[string]any{"timeout": 0}, time.Second, false},
		"latency 0.3 s":    {"latency", map[string]any{"latency": 150}, 30 * time.Second, true},
		"latency 2 s":      {"latency", map[string]any{"latency": 1000}, 10 * time.Second, false},
		"slow close":       {"slow_close", map[string]any{"delay": 1000}, 30 * time.Second, true},
		"bandwidth 50 kB":  {"bandwidth", map[string]any{"rate": 50}, 30 * time.Second, true},
		"bandwidth 1 kB/s": {"bandwidth", map[string]any{"rate": 1}, 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, address(t))
			h := open(t, server(t), rabbitmq.Config{URL: p.url()})
			s := &sender{harness: h, topic: h.Topic()}
			s.all(s.batch(100))
			records := s.batch(400)
			p.withToxic(c.toxic, c.attributes, func() {
				left, err := s.publish(records, c.limit)
				require.Equal(t, c.passes, err == nil, "%v", err)
				if err != nil {
					require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
				}
				records = left
				if c.toxic == "slow_close" {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					require.NoError(t, h.broker.Close(ctx))
					h.broker, err = rabbitmq.New(rabbitmq.Config{URL: p.url()})
					require.NoError(t, err)
				}
			})
			back := time.Now()
			s.all(records)
			require.Less(t, time.Since(back), 10*time.Second, "not recovered within ten seconds")
			s.check()
		})
	}
}

// Behind a line so slow that a handshake takes longer than a call has time, the
// attempt goes on and the next calls get on.
func TestFault_AHandshakeLongerThanACall(t *testing.T) {
	p := startProxy(t, address(t))
	h := open(t, server(t), rabbitmq.Config{URL: p.url()})
	s := &sender{harness: h, topic: h.Topic()}
	p.withToxic("latency", map[string]any{"latency": 150}, func() {
		s.all(s.batch(40)) // by calls of 2 s
		_ = h.broker.Close(t.Context())
		var err error
		h.broker, err = rabbitmq.New(rabbitmq.Config{URL: p.url()})
		require.NoError(t, err)
		records := s.batch(40)
		for round := 0; len(records) > 0; round++ {
			require.Less(t, round, 60)
			records, _ = s.publish(records, 500*time.Millisecond)
		}
	})
	s.check()
}

// kill -9 with confirms outstanding, again and again. The same object goes on.
func TestFault_ServerStoppedAndKilled(t *testing.T) {
	own := startPrivate(t)
	h := open(t, own.url(), rabbitmq.Config{})
	both := []*sender{{harness: h, topic: h.queue(quorum)}, {harness: h, topic: h.queue(nil)}}
	// A single node that is killed soon after it made a quorum queue forgets that
	// queue's member, and never confirms for it again. A clean stop saves it.
	own.script("stop")
	own.script("start")
	for _, s := range both {
		s.reconnect(own.url())
		s.all(s.batch(400))
	}
	s := both[0]
	hung := open(t, own.url(), rabbitmq.Config{})
	require.NoError(t, hung.broker.Publish(t.Context(), numbered(hung.Topic(), 200)[:1]))

	// The server stands still. Neither Publish nor Close waits for it.
	own.signal(syscall.SIGSTOP)
	left, err := s.publish(s.batch(400), time.Second)
	require.Error(t, err)
	// Nor for a write that hangs, when the sockets are full.
	large := numbered(name("large"), 400)
	for i := range large {
		large[i].Aggregate, large[i].Payload = "", make([]byte, 100<<10)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	start := time.Now()
	require.Error(t, hung.broker.Publish(ctx, large))
	cancel()
	require.Less(t, time.Since(start), 3*time.Second)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	start = time.Now()
	_ = h.broker.Close(ctx) // may say that a connection was still open
	cancel()
	require.Less(t, time.Since(start), 3*time.Second)
	own.signal(syscall.SIGCONT)
	h.broker, err = rabbitmq.New(rabbitmq.Config{URL: own.url()})
	require.NoError(t, err)
	s.all(left)

	kills := 2
	if testenv.Long() {
		kills = 8
	}
	for i := range kills {
		s := both[i%2]
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			pause(t, 30*time.Millisecond)
			own.signal(syscall.SIGKILL)
		}()
		var waiting []backends.Record
		for waiting == nil {
			waiting, _ = s.publish(s.batch(2000), 2*time.Second)
		}
		<-killed
		_, err = s.publish(waiting, 5*time.Second)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		require.ErrorIs(t, h.broker.(backends.Pinger).Ping(t.Context()), syscall.ECONNREFUSED)
		own.script("start")
		back := time.Now()
		s.all(waiting)
		require.Less(t, time.Since(back), 10*time.Second, "not recovered within ten seconds of the server's return")
		require.NoError(t, h.broker.(backends.Pinger).Ping(t.Context()))
	}
	for _, s := range both {
		s.reconnect(own.url())
		s.check()
	}
}

// Memory alarm: the server blocks the connection. It is said soon and as what it
// is, nothing is lost, and it is over when the alarm is.
func TestFault_MemoryAlarm(t *testing.T) {
	own := startPrivate(t)
	h := open(t, own.url(), rabbitmq.Config{})
	s := &sender{harness: h, topic: h.Topic()}
	s.all(s.batch(400))
	own.ctl("set_vm_memory_high_watermark", "absolute", "1")
	records := s.batch(800)
	for range 2 { // over a connection that was there, and a new one
		start := time.Now()
		left, err := s.publish(records, 30*time.Second)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "blocked")
		require.NotEmpty(t, left)
		require.Less(t, time.Since(start), 10*time.Second, "a blocked connection was waited for")
		records = left
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, h.broker.Close(ctx))
	var err error
	h.broker, err = rabbitmq.New(rabbitmq.Config{URL: own.url()})
	require.NoError(t, err)
	// Larger than what the sockets hold: a write hangs, not only the answer.
	big := s.batch(40)
	for i := range big {
		big[i].Payload = make([]byte, 1<<20)
	}
	_, err = s.publish(big, 3*time.Second)
	require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)

	own.ctl("set_vm_memory_high_watermark", "0.6")
	s.all(records)
	s.all(big)
	s.check()
}
