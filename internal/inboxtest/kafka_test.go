package inboxtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/consumer"
	"github.com/outmill/outmill/internal/testenv"
	"github.com/outmill/outmill/middleware"
)

// size is how many aggregates and messages of each a run has.
func size() (aggregates, each, kills int) {
	if testenv.Long() {
		return 200, 100, 8
	}
	return 100, 20, 2
}

// watermill-kafka in several processes, which are killed and rebalanced: effects
// once and in order, nothing lost.
func TestKafka_KilledAndRebalanced(t *testing.T) {
	aggregates, each, kills := size()
	w := newWorld(t)
	w.topic(6)
	broker, err := kafka.New(kafka.Config{Brokers: brokers()})
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close(context.WithoutCancel(t.Context()))) }()

	running := []*process{start(t, w.name), start(t, w.name)}
	records := w.records(aggregates, each)
	for part := range kills + 1 {
		from, to := len(records)*part/(kills+1), len(records)*(part+1)/(kills+1)
		require.NoError(t, broker.Publish(t.Context(), records[from:to]))
		if part == kills {
			break
		}
		// 1. Some of it is handled. 2. One dies. 3. A new one joins, all rebalance.
		w.until(min(w.handled()+20, to/2), 60*time.Second)
		running[part%2].kill()
		running[part%2] = start(t, w.name)
	}
	w.until(aggregates*each, 3*time.Minute)
	for _, p := range running {
		p.stop()
	}
	w.check(aggregates, each)
}

// Watermill's gochannel, which delivers several of an aggregate at once, to two
// instances.
func TestGoChannel_TwoInstances(t *testing.T) {
	aggregates, each, _ := size()
	w := newWorld(t)
	pubsub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 64}, watermill.NopLogger{})
	shared := &sharing{}
	for range 2 {
		inbox, err := consumer.New(w.store, consumer.Config{Name: "billing", MaxAttempts: -1, SweepInterval: 50 * time.Millisecond})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
		require.NoError(t, err)
		in, err := pubsub.Subscribe(t.Context(), w.name)
		require.NoError(t, err)
		router.AddConsumerHandler("bill", w.name, shared.member(in), bill(w.name)).AddMiddleware(middleware.Inbox(inbox))
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { _ = inbox.Run(ctx) })
		wg.Go(func() { _ = router.Run(ctx) })
		<-router.Running()
		defer wg.Wait()
		defer cancel()
	}
	for _, r := range w.records(aggregates, each) {
		require.NoError(t, pubsub.Publish(w.name, r.Message()))
	}
	w.until(aggregates*each, 2*time.Minute)
	w.check(aggregates, each)
	require.NoError(t, pubsub.Close())
}

// sharing gives every second message to each of two members, as a group does:
// gochannel by itself gives all to both.
type sharing struct{ members int }

func (s *sharing) member(in <-chan *message.Message) message.Subscriber {
	s.members++
	return &member{in: in, odd: s.members%2 == 1}
}

type member struct {
	in  <-chan *message.Message
	odd bool
}

// Subscribe implements message.Subscriber.
func (m *member) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range m.in {
			if (msg.UUID[len(msg.UUID)-1]%2 == 1) != m.odd {
				msg.Ack()
				continue
			}
			select {
			case out <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Close implements message.Subscriber.
func (m *member) Close() error { return nil }
