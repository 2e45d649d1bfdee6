package rabbitmq_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness has a queue for each topic and reads it by watermill-amqp's marshaler.
type harness struct {
	t      testing.TB
	broker backends.Broker
	admin  *amqp.Connection // straight to the server
	args   amqp.Table       // of the queues
	large  int              // a payload that is refused

	mu  sync.Mutex
	got map[string][]brokertest.Message
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string { return h.queue(h.args) }

func name(prefix string) string { return prefix + "-" + strings.ToLower(watermill.NewShortUUID()) }

// channel opens a channel for the test's own use.
func (h *harness) channel() *amqp.Channel {
	h.t.Helper()
	ch, err := h.admin.Channel()
	require.NoError(h.t, err)
	return ch
}

func (h *harness) queue(args amqp.Table) string {
	h.t.Helper()
	q, ch := name("t"), h.channel()
	defer func() { _ = ch.Close() }()
	_, err := ch.QueueDeclare(q, true, false, false, false, args)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { h.remove(q) })
	return q
}

// remove deletes a queue, and waits for that.
func (h *harness) remove(queue string) {
	if ch, err := h.admin.Channel(); err == nil {
		_, _ = ch.QueueDelete(queue, false, false, false)
		_ = ch.Close()
	}
}

func (h *harness) MissingTopic() string { return name("missing") }

func (h *harness) Refused(r backends.Record) backends.Record {
	r.Payload = make([]byte, h.large)
	return r
}

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch, err := h.admin.Channel()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ch.Close() }()
	for {
		d, ok, err := ch.Get(topic, true)
		switch {
		case err != nil:
			return nil, err
		case ok:
			m, err := wamqp.DefaultMarshaler{}.Unmarshal(d)
			if err != nil {
				return nil, err
			}
			h.got[topic] = append(h.got[topic], brokertest.Message{ID: m.UUID, Payload: m.Payload, Headers: m.Metadata})
		case len(h.got[topic]) >= n:
			return h.got[topic], nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%d of %d came: %w", len(h.got[topic]), n, ctx.Err())
		default:
			pause(h.t, 5*time.Millisecond)
		}
	}
}

func pause(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func server(t testing.TB) string { return testenv.Server(t, testenv.RabbitMQURL) }

// open makes a broker over cfg; admin is the server's own address.
func open(t testing.TB, admin string, cfg rabbitmq.Config) *harness {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = admin
	}
	b, err := rabbitmq.New(cfg)
	require.NoError(t, err)
	conn, err := amqp.Dial(admin)
	require.NoError(t, err)
	h := &harness{t: t, broker: b, admin: conn, large: 16<<20 + 1, got: map[string][]brokertest.Message{}}
	t.Cleanup(func() { _ = h.admin.Close() })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		require.NoError(t, h.broker.Close(ctx))
	})
	return h
}

var quorum = amqp.Table{"x-queue-type": "quorum"}

func TestBroker_Classic(t *testing.T) {
	url := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t, url, rabbitmq.Config{}) })
}

func TestBroker_Quorum(t *testing.T) {
	url := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		h := open(t, url, rabbitmq.Config{})
		h.args = quorum
		return h
	})
}

// MaxMessageBytes above the server's limit: the server refuses, and closes the channel.
func TestBroker_ServerLimit(t *testing.T) {
	url := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		return open(t, url, rabbitmq.Config{MaxMessageBytes: 64 << 20, Channels: 1})
	})
}
