package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/brokertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// switched is a publisher that can be told to fail, to hang and to panic.
type switched struct {
	message.Publisher
	mu     sync.Mutex
	down   bool
	frozen chan struct{} // closed: not frozen
}

var errRefused = errors.New("refused")

func (s *switched) Publish(topic string, msgs ...*message.Message) error {
	s.mu.Lock()
	down, frozen := s.down, s.frozen
	s.mu.Unlock()
	<-frozen
	switch {
	case down:
		return backends.Unavailable(errors.New("down"))
	case msgs[0].Metadata.Get("refuse") != "":
		return errRefused
	}
	return s.Publisher.Publish(topic, msgs...)
}

// harness subscribes to each topic as it hands it out. A publish waits for the
// subscriber's ack: that is what keeps order in a GoChannel.
type harness struct {
	t      testing.TB
	broker *pubsub.Broker
	sub    *gochannel.GoChannel
	pub    *switched

	mu  sync.Mutex
	got map[string][]brokertest.Message
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string {
	topic := watermill.NewShortUUID()
	in, err := h.sub.Subscribe(context.WithoutCancel(h.t.Context()), topic) // ends with the GoChannel
	require.NoError(h.t, err)
	go func() {
		for m := range in {
			h.mu.Lock()
			h.got[topic] = append(h.got[topic], brokertest.Message{ID: m.UUID, Payload: m.Payload, Headers: m.Metadata})
			h.mu.Unlock()
			m.Ack()
		}
	}()
	return topic
}

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	for {
		h.mu.Lock()
		out := slices.Clone(h.got[topic])
		h.mu.Unlock()
		if len(out) >= n {
			return out, nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d came: %w", len(out), n, ctx.Err())
		}
	}
}

func (h *harness) Refused(r backends.Record) backends.Record {
	r.Metadata = message.Metadata{"refuse": "yes"}
	return r
}

func (h *harness) set(change func()) {
	h.pub.mu.Lock()
	defer h.pub.mu.Unlock()
	change()
}

func (h *harness) Down()   { h.set(func() { h.pub.down = true }) }
func (h *harness) Up()     { h.set(func() { h.pub.down = false }) }
func (h *harness) Freeze() { h.set(func() { h.pub.frozen = make(chan struct{}) }) }
func (h *harness) Thaw()   { h.set(func() { close(h.pub.frozen) }) }

func open(t testing.TB) *harness {
	t.Helper()
	ch := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	pub := &switched{Publisher: ch, frozen: make(chan struct{})}
	close(pub.frozen)
	b, err := pubsub.New(pub, pubsub.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
		require.NoError(t, ch.Close())
	})
	return &harness{t: t, broker: b, sub: ch, pub: pub, got: map[string][]brokertest.Message{}}
}

func TestBroker_GoChannel(t *testing.T) {
	brokertest.Run(t, func(t testing.TB) brokertest.Harness { return open(t) })
}

func TestPublish_PanicIsAnAnswer(t *testing.T) {
	b, err := pubsub.New(panics{}, pubsub.Config{})
	require.NoError(t, err)
	err = b.Publish(t.Context(), []backends.Record{{MessageID: "1", Topic: "t"}})
	var partial *backends.PartialError
	require.ErrorAs(t, err, &partial)
	require.Equal(t, backends.Rejected, partial.Failures[0].State)
	require.NotContains(t, err.Error(), "secret")
}

type panics struct{}

func (panics) Publish(string, ...*message.Message) error { panic("secret") }
func (panics) Close() error                              { return nil }

// 1. A call hangs; its batch is given up.
// 2. The next batch in that lane is refused at once, without another goroutine.
// 3. The call returns, and the lane works again.
func TestPublish_AHungLaneStaysShutUntilItReturns(t *testing.T) {
	h := open(t)
	r := []backends.Record{{MessageID: "1", Topic: "t", Aggregate: "a"}}
	h.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var partial *backends.PartialError
	require.ErrorAs(t, h.broker.Publish(ctx, r), &partial)
	require.Equal(t, backends.Unknown, partial.Failures[0].State)
	for range 100 {
		err := h.broker.Publish(t.Context(), r)
		require.ErrorAs(t, err, &partial)
		require.Equal(t, backends.NotSent, partial.Failures[0].State)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err))
	}
	h.Thaw()
	require.Eventually(t, func() bool { return h.broker.Publish(t.Context(), r) == nil }, 10*time.Second, time.Millisecond)
}

// A factory's publisher in which a call hangs is replaced at once.
func TestPublish_FactoryReplacesAHungPublisher(t *testing.T) {
	frozen := make(chan struct{})
	made := 0
	b, err := pubsub.NewFactory(func() (message.Publisher, error) {
		made++
		ready := make(chan struct{})
		close(ready)
		if made == 1 {
			ready = frozen
		}
		return &switched{Publisher: drop{}, frozen: ready}, nil
	}, pubsub.Config{Lanes: 1})
	require.NoError(t, err)
	r := []backends.Record{{MessageID: "1", Topic: "t"}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, b.Publish(ctx, r))
	require.NoError(t, b.Publish(t.Context(), r))
	require.Equal(t, 2, made)
	close(frozen)
	require.NoError(t, b.Close(t.Context()))
}

type drop struct{}

func (drop) Publish(string, ...*message.Message) error { return nil }
func (drop) Close() error                              { return nil }

func TestNew_Faults(t *testing.T) {
	_, err := pubsub.New(nil, pubsub.Config{})
	require.ErrorContains(t, err, "nil")
	_, err = pubsub.NewFactory(nil, pubsub.Config{})
	require.ErrorContains(t, err, "nil")
	_, err = pubsub.New(drop{}, pubsub.Config{Lanes: -1})
	require.ErrorContains(t, err, "Lanes is -1, allowed is 1 to 4096")
}
