package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/consumer"
)

// outbox reads what was published to the outbox: topic, aggregate and payload.
func (w *world) outbox() []string {
	ctx := context.WithoutCancel(w.t.Context())
	lease, err := w.store.Lease(ctx, "checker", time.Hour)
	require.NoError(w.t, err)
	got, err := w.store.Reader().Read(ctx, lease, backends.Want{Limit: 1000})
	require.NoError(w.t, err)
	var out []string
	for _, r := range got {
		if r.Topic != "effects" {
			out = append(out, r.Topic+" "+r.Aggregate+" "+string(r.Payload))
		}
	}
	require.NoError(w.t, w.store.Release(ctx, lease))
	return out
}

func event(aggregate, payload string) *message.Message {
	m := message.NewMessage(aggregate+payload, []byte(payload))
	backends.SetAggregate(m, aggregate)
	return m
}

// What a handler published and returned is committed with its writes, or not at all.
func TestPublish_WithTheHandlersTransaction(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		fail := true
		i := w.instance(consumer.Config{PublishTopic: "replies"}, func(msg *message.Message) ([]*message.Message, error) {
			one := event("z", "1")
			one.SetContext(msg.Context())
			if err := consumer.Publisher().Publish("events", one, event("b", "2")); err != nil {
				return nil, err
			}
			if fail {
				return nil, errors.New("after publishing")
			}
			return []*message.Message{event("z", "3"), event("z", "4")}, nil
		})
		i.gives(consumer.Failed, order("a", 1))
		require.Empty(t, w.outbox())
		fail = false
		i.gives(consumer.Processed, order("a", 1))
		require.ElementsMatch(t, []string{"events b 2", "events z 1", "replies z 3", "replies z 4"}, w.outbox())
		i.gives(consumer.Duplicate, order("a", 1))
		require.Len(t, w.outbox(), 4)
	})
}

func TestPublish_OutsideAHandler(t *testing.T) {
	w := memoryWorld(t)
	m := event("a", "1")
	require.ErrorIs(t, consumer.Publisher().Publish("t", m), backends.ErrNoTransaction)
	require.ErrorContains(t, consumer.Publisher().Publish("", m), "topic")
	require.ErrorContains(t, consumer.Publisher().Publish("t", nil), "nil")
	var kept context.Context
	i := w.instance(consumer.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		kept = msg.Context()
		return nil, nil
	})
	i.gives(consumer.Processed, order("a", 1))
	m.SetContext(kept)
	require.ErrorIs(t, consumer.Publisher().Publish("t", m), backends.ErrTransactionDone)
}

func TestPublish_AReturnedMessageNeedsATopic(t *testing.T) {
	w := memoryWorld(t)
	i := w.instance(consumer.Config{}, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{event("z", "1")}, nil
	})
	require.ErrorContains(t, i.gives(consumer.Failed, order("a", 1)).Err, "PublishTopic")
}

// commits is a store whose commits go wrong: the first is cut off before it takes
// effect, the second after.
type commits struct {
	backends.Inboxes
	n int
}

func (c *commits) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	in, err := c.Inboxes.Inbox(cfg)
	return &cutInbox{in.(wholeInbox), c}, err
}

type cutInbox struct {
	wholeInbox
	c *commits
}

func (c *cutInbox) Begin(ctx context.Context, d *backends.Delivery, o backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
	tx, s, err := c.wholeInbox.Begin(ctx, d, o)
	return &cutTx{tx, c.c}, s, err
}

type cutTx struct {
	backends.InboxTx
	c *commits
}

func (t *cutTx) Commit(ctx context.Context) error {
	t.c.n++
	switch t.c.n {
	case 1:
		return errors.Join(errCut, t.Rollback(ctx))
	case 2:
		return errors.Join(errCut, t.InboxTx.Commit(ctx))
	}
	return t.InboxTx.Commit(ctx)
}

var errCut = errors.New("the connection was cut")

// 6: nobody knows whether the commit took effect: the message is given back, no
// attempt is counted, and the next delivery tells.
func TestReceive_ACommitOfUnknownOutcome(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		c, err := consumer.New(&commits{Inboxes: w.store}, consumer.Config{Name: "billing", MaxAttempts: 1})
		require.NoError(t, err)
		h := c.Wrap(func(msg *message.Message) ([]*message.Message, error) { return nil, w.apply(msg.Context(), msg) })
		for range 2 {
			_, err = h(order("a", 1))
			require.ErrorIs(t, err, errCut)
		}
		_, err = h(order("a", 1))
		require.NoError(t, err)
		require.Equal(t, []string{"a/1"}, w.effects())
	})
}
