package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Publisher returns a publisher for handlers: what it publishes is appended to
// the outbox once, when the handler has returned, in an order that keeps
// transactions from waiting for each other in a circle. It finds the delivery in
// the context of each call's first message, which a cqrs.EventBus sets; without
// one Publish gives [backends.ErrNoTransaction]. It is safe for concurrent use.
//
// A store's own publishers work in a handler too, at once and in the order of the
// calls.
func Publisher() message.Publisher { return publisher{} }

type publisher struct{}

// Publish implements message.Publisher.
func (publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if topic == "" {
		return errors.New("consumer: publish: the topic is empty")
	}
	if slices.Contains(msgs, nil) {
		return errors.New("consumer: publish: a message is nil")
	}
	out, ok := msgs[0].Context().Value(collectorKey{}).(*collector)
	if !ok {
		return fmt.Errorf("consumer: publish: set the handler's context on the message: %w", backends.ErrNoTransaction)
	}
	return out.add(topic, msgs)
}

// Close implements message.Publisher. It does nothing.
func (publisher) Close() error { return nil }

type collectorKey struct{}

func withCollector(ctx context.Context, c *collector) context.Context {
	return context.WithValue(ctx, collectorKey{}, c)
}

// collector keeps what a handler publishes.
type collector struct {
	mu     sync.Mutex
	closed bool
	topics map[string][]*message.Message
}

func (c *collector) add(topic string, msgs []*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(msgs) == 0:
		return nil
	case c.closed:
		return fmt.Errorf("consumer: publish: the handler has returned: %w", backends.ErrTransactionDone)
	case topic == "":
		return errors.New("consumer: the handler returned messages and no topic is known for them: set Config.PublishTopic, " +
			"or give the router's handler a publish topic")
	}
	if c.topics == nil {
		c.topics = map[string][]*message.Message{}
	}
	c.topics[topic] = append(c.topics[topic], msgs...)
	return nil
}

// publish appends all, sorted: two handlers that write to the same aggregates
// take their sequences in the same order.
func (c *collector) publish(ctx context.Context, tx backends.InboxTx) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, topic := range slices.Sorted(maps.Keys(c.topics)) {
		msgs := c.topics[topic]
		slices.SortStableFunc(msgs, func(a, b *message.Message) int { return cmp.Compare(backends.Aggregate(a), backends.Aggregate(b)) })
		if err := tx.Publish(ctx, topic, msgs...); err != nil {
			return fmt.Errorf("consumer: append to the outbox: %w", err)
		}
	}
	return nil
}
