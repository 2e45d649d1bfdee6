package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/internal/testenv"
	"github.com/outmill/outmill/internal/testenv/private"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness reads back by watermill-nats' own unmarshaler.
type harness struct {
	t      testing.TB
	url    string
	broker backends.Broker
	conn   *client.Conn
	js     jetstream.JetStream
	made   []string
}

func server(t testing.TB) string { return testenv.Server(t, testenv.NATSURL) }

func open(t testing.TB, url string, cfg nats.Config) *harness {
	t.Helper()
	if cfg.Servers == nil {
		cfg.Servers = []string{url}
	}
	b, err := nats.New(cfg)
	require.NoError(t, err)
	h := &harness{t: t, url: url, broker: b}
	h.conn, err = client.Connect(url, client.MaxReconnects(-1), client.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	h.js, err = jetstream.New(h.conn)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
		for _, s := range h.made {
			_ = h.js.DeleteStream(ctx, s) // a private server may be gone
		}
		h.conn.Close()
	})
	return h
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string { return h.stream(jetstream.StreamConfig{}) }

// stream makes one with a random name, whose subject is its name.
func (h *harness) stream(cfg jetstream.StreamConfig) string {
	h.t.Helper()
	cfg.Name = "t-" + watermill.NewShortUUID()
	cfg.Subjects = []string{cfg.Name}
	_, err := h.js.CreateStream(h.t.Context(), cfg)
	require.NoError(h.t, err)
	h.made = append(h.made, cfg.Name)
	return cfg.Name
}

func (h *harness) MissingTopic() string { return "missing-" + watermill.NewShortUUID() }

// Refused is larger than the server takes.
func (h *harness) Refused(r backends.Record) backends.Record {
	r.Payload = make([]byte, 2<<20)
	return r
}

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := h.js.OrderedConsumer(ctx, topic, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	var out []brokertest.Message
	for len(out) < n {
		batch, err := c.Fetch(n-len(out), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			w, err := wjetstream.DefaultUnmarshaler{}.Unmarshal(m)
			if err != nil {
				return nil, err
			}
			out = append(out, brokertest.Message{ID: w.UUID, Payload: w.Payload, Headers: w.Metadata})
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d came: %w", len(out), n, ctx.Err())
		}
	}
	// And whatever else came by then.
	more, err := c.FetchNoWait(10_000)
	if err != nil {
		return nil, err
	}
	for m := range more.Messages() {
		w, err := wjetstream.DefaultUnmarshaler{}.Unmarshal(m)
		if err != nil {
			return nil, err
		}
		out = append(out, brokertest.Message{ID: w.UUID, Payload: w.Payload, Headers: w.Metadata})
	}
	return out, nil
}

func TestBroker_NATS(t *testing.T) {
	s := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t, s, nats.Config{}) })
}

// Few records on their way at a time: what is ready waits for room.
func TestBroker_NATSFewPending(t *testing.T) {
	s := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t, s, nats.Config{MaxPending: 3}) })
}

// streamLimit refuses by the stream's limit, which the server alone knows.
type streamLimit struct{ *harness }

func (h streamLimit) Topic() string {
	return h.stream(jetstream.StreamConfig{MaxMsgSize: 500_000})
}

func (h streamLimit) Refused(r backends.Record) backends.Record {
	r.Payload = make([]byte, 600_000)
	return r
}

func TestBroker_NATSStreamLimit(t *testing.T) {
	s := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return streamLimit{open(t, s, nats.Config{})} })
}

// faulty can be cut off by its proxy and stopped by a signal.
type faulty struct {
	*harness
	s *private.Server
}

func (f faulty) Down()   { f.s.Enable(false) }
func (f faulty) Up()     { f.s.Enable(true) }
func (f faulty) Freeze() { f.s.Signal(syscall.SIGSTOP) }
func (f faulty) Thaw()   { f.s.Signal(syscall.SIGCONT) }

func TestBroker_NATSCutOffAndStopped(t *testing.T) {
	server(t) // where there is no NATS, there is none to be started
	s := private.StartProxied(t, "nats")
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		h := open(t, "nats://"+s.Addr, nats.Config{Servers: []string{"nats://" + s.Proxy}})
		return faulty{h, s}
	})
}

func publisher(t testing.TB, url string) *wjetstream.Publisher {
	t.Helper()
	p, err := wjetstream.NewPublisher(wjetstream.PublisherConfig{URL: url, Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	return p
}

// lanes is watermill-nats' publisher through pubsub.
func lanes(t testing.TB, url string) *pubsub.Broker {
	t.Helper()
	b, err := pubsub.New(publisher(t, url), pubsub.Config{ClosePublisher: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
	return b
}

func numbered(topic string, n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			Ref: backends.Ref{Shard: 1, ID: int64(i + 1)}, MessageID: watermill.NewUUID(), Topic: topic, Aggregate: "order-1",
			Sequence: int64(i + 1), Payload: []byte{0xff, byte(i)}, Metadata: message.Metadata{"type": "placed"}, CreatedAt: time.Now(),
		}
	}
	return out
}

// states lists an answer's failures as "index state class".
func states(t *testing.T, err error) string {
	t.Helper()
	var partial *backends.PartialError
	require.True(t, errors.As(err, &partial), "%v", err)
	var out []string
	for _, x := range partial.Failures {
		out = append(out, fmt.Sprint(x.Index, " ", x.State, " ", backends.ClassOf(x.Err)))
	}
	return strings.Join(out, ", ")
}

// Watermill's own subscribers read what the adapter wrote: that of its JetStream
// package, and the older one with its NATS marshaler.
func TestWire_WatermillSubscribersReadIt(t *testing.T) {
	url := server(t)
	h := open(t, url, nats.Config{})
	topic := h.Topic()
	records := numbered(topic, 100)
	require.NoError(t, h.broker.Publish(t.Context(), records))

	newer, err := wjetstream.NewSubscriber(wjetstream.SubscriberConfig{URL: url, Logger: watermill.NopLogger{}, AckWaitTimeout: time.Minute})
	require.NoError(t, err)
	older, err := wnats.NewSubscriber(wnats.SubscriberConfig{
		URL: url, Unmarshaler: &wnats.NATSMarshaler{}, AckWaitTimeout: time.Minute, CloseTimeout: 10 * time.Second,
		JetStream: wnats.JetStreamConfig{SubscribeOptions: []client.SubOpt{client.DeliverAll(), client.AckExplicit()}},
	}, watermill.NopLogger{})
	require.NoError(t, err)
	for name, sub := range map[string]message.Subscriber{"jetstream": newer, "nats": older} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.NoError(t, sub.Close()) }()
			in, err := sub.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			for i := range records {
				select {
				case m := <-in:
					want := records[i].Message()
					require.Equal(t, want.UUID, m.UUID)
					require.Equal(t, want.Payload, m.Payload)
					require.Equal(t, want.Metadata, m.Metadata)
					m.Ack()
				case <-time.After(30 * time.Second):
					t.Fatalf("message %d did not come", i)
				}
			}
		})
	}
}
