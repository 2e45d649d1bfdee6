package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	client "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/internal/testenv"
	"github.com/outmill/outmill/internal/testenv/private"
)

func TestMain(m *testing.M) {
	// watermill-redisstream's subscriber sleeps after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream.(*Subscriber).read"))
}

// harness reads back by watermill-redisstream's own unmarshaller.
type harness struct {
	t      testing.TB
	broker backends.Broker
	client *client.Client
	made   []string
}

func server(t testing.TB) string {
	u, err := url.Parse(testenv.Server(t, testenv.RedisURL))
	require.NoError(t, err)
	return u.Host
}

func open(t testing.TB, addr string, cfg redis.Config) *harness {
	t.Helper()
	if cfg.Addr == "" {
		cfg.Addr = addr
	}
	b, err := redis.New(cfg)
	require.NoError(t, err)
	h := &harness{t: t, broker: b, client: client.NewClient(&client.Options{Addr: addr})}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
		if len(h.made) > 0 {
			_ = h.client.Del(ctx, h.made...) // a private server may be gone
		}
		require.NoError(t, h.client.Close())
	})
	return h
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string {
	topic := "t-" + watermill.NewShortUUID()
	h.made = append(h.made, topic)
	return topic
}

// MissingTopic is a key that holds no stream.
func (h *harness) MissingTopic() string {
	topic := h.Topic()
	require.NoError(h.t, h.client.Set(h.t.Context(), topic, "no stream", 0).Err())
	return topic
}

// Refused is too large for the adapter: Redis itself refuses no single entry.
func (h *harness) Refused(r backends.Record) backends.Record {
	r.Payload = make([]byte, 1<<20)
	return r
}

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		got, err := h.client.XRange(ctx, topic, "-", "+").Result()
		if err != nil {
			return nil, err
		}
		if len(got) >= n {
			out := make([]brokertest.Message, len(got))
			for i, m := range got {
				w, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(m.Values)
				if err != nil {
					return nil, err
				}
				out[i] = brokertest.Message{ID: w.UUID, Payload: w.Payload, Headers: w.Metadata}
			}
			return out, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d came: %w", len(got), n, ctx.Err())
		}
	}
}

func TestBroker_Redis(t *testing.T) {
	s := server(t)
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t, s, redis.Config{MaxMessageBytes: 1 << 20}) })
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

func TestBroker_RedisCutOffAndStopped(t *testing.T) {
	server(t) // where there is no Redis, there is none to be started
	s := private.StartProxied(t, "redis")
	brokertest.Run(t, func(t testing.TB) brokertest.Harness {
		h := open(t, s.Addr, redis.Config{Addr: s.Proxy, MaxMessageBytes: 1 << 20})
		return faulty{h, s}
	})
}

// lanes is watermill-redisstream's publisher through pubsub.
func lanes(t testing.TB, addr string) *pubsub.Broker {
	t.Helper()
	c := client.NewClient(&client.Options{Addr: addr})
	p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: c}, watermill.NopLogger{})
	require.NoError(t, err)
	b, err := pubsub.New(p, pubsub.Config{ClosePublisher: true})
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

// Watermill's own subscriber reads what the adapter wrote, with a consumer group
// and without one.
func TestWire_WatermillSubscriberReadsIt(t *testing.T) {
	addr := server(t)
	h := open(t, addr, redis.Config{})
	topic := h.Topic()
	records := numbered(topic, 100)
	records[7].Payload = nil
	records[8].Metadata = message.Metadata{"long": strings.Repeat("v", 300), "longer": strings.Repeat("v", 70_000), "": "no key", "32": strings.Repeat("v", 32)}
	require.NoError(t, h.broker.Publish(t.Context(), records))
	for _, group := range []string{"", "group"} {
		t.Run("group "+group, func(t *testing.T) {
			c := client.NewClient(&client.Options{Addr: addr})
			sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client: c, ConsumerGroup: group, OldestId: "0", FanOutOldestId: "0", DisableIndefiniteInitialBlock: true,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			defer func() { require.NoError(t, sub.Close()) }() // and the client with it
			in, err := sub.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			for i := range records {
				select {
				case m := <-in:
					want := records[i].Message()
					require.Equal(t, want.UUID, m.UUID)
					require.Equal(t, string(want.Payload), string(m.Payload))
					require.Equal(t, want.Metadata, m.Metadata)
					m.Ack()
				case <-time.After(30 * time.Second):
					t.Fatalf("message %d did not come", i)
				}
			}
		})
	}
}
