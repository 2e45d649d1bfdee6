package middleware_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/middleware"
)

// recorder is a publisher that keeps what it gets.
type recorder struct {
	topics []string
	msgs   []*message.Message
	closed bool
}

func (r *recorder) Publish(topic string, msgs ...*message.Message) error {
	r.topics = append(r.topics, topic)
	r.msgs = append(r.msgs, msgs...)
	return nil
}

func (r *recorder) Close() error { r.closed = true; return nil }

func TestAggregate_NamesWhatHasNone(t *testing.T) {
	r := &recorder{}
	pub := middleware.Aggregate(r, func(topic string, msg *message.Message) (string, error) {
		if msg.UUID == "bad" {
			return "", errors.New("no order in it")
		}
		return topic + "-" + msg.Metadata.Get("order_id"), nil
	})
	a, b := message.NewMessage("1", nil), message.NewMessage("2", nil)
	a.Metadata.Set("order_id", "7")
	backends.SetAggregate(b, "kept")
	require.NoError(t, pub.Publish("orders", a, b))
	require.Equal(t, "orders-7", backends.Aggregate(r.msgs[0]))
	require.Equal(t, "kept", backends.Aggregate(r.msgs[1]))
	require.ErrorContains(t, pub.Publish("orders", message.NewMessage("bad", nil)), `message 0 ("bad"): derive the aggregate: no order in it`)
	require.Len(t, r.msgs, 2)
	require.NoError(t, pub.Close())
	require.True(t, r.closed)
}

func TestMaxPayload_RefusesAllAtOnceAndSendsNothing(t *testing.T) {
	r := &recorder{}
	pub := middleware.MaxPayload(r, 3)
	err := pub.Publish("t", message.NewMessage("1", []byte("four")), message.NewMessage("2", []byte("ok")), message.NewMessage("3", []byte("fifth")))
	require.ErrorContains(t, err, `message 0 ("1"): payload has 4 bytes, at most 3 are allowed`)
	require.ErrorContains(t, err, `message 2 ("3"): payload has 5 bytes`)
	var fault *backends.MessageError
	require.ErrorAs(t, err, &fault)
	require.Empty(t, r.msgs)
	require.NoError(t, pub.Publish("t", message.NewMessage("1", []byte("abc")), nil))
}

func TestRequireMetadata_NamesEachKey(t *testing.T) {
	r := &recorder{}
	pub := middleware.RequireMetadata(r, "type", "version")
	m := message.NewMessage("1", nil)
	m.Metadata.Set("type", "placed")
	err := pub.Publish("t", m, message.NewMessage("2", nil))
	for _, want := range []string{`message 0 ("1"): metadata[version] is missing`, `message 1 ("2"): metadata[type]`, `message 1 ("2"): metadata[version]`} {
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, r.msgs)
	m.Metadata.Set("version", "2")
	require.NoError(t, pub.Publish("t", m))
}

func TestRouteTopic(t *testing.T) {
	r := &recorder{}
	pub := middleware.RouteTopic(r, func(topic string) (string, error) {
		if topic == "secret" {
			return "", errors.New("not allowed")
		}
		return "shop." + topic, nil
	})
	require.NoError(t, pub.Publish("orders", message.NewMessage("1", nil)))
	require.Equal(t, []string{"shop.orders"}, r.topics)
	require.ErrorContains(t, pub.Publish("secret", message.NewMessage("1", nil)), `route topic "secret": not allowed`)
}

func Example() {
	store, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	tx := store.Begin()
	pub := middleware.RequireMetadata(middleware.MaxPayload(store.Publisher(tx), 900_000), "type")

	err = pub.Publish("orders", message.NewMessage("1", []byte("{}")))
	fmt.Println(err)
	fmt.Println(tx.Commit())
	// Output:
	// message 0 ("1"): metadata[type] is missing: set it before publishing
	// <nil>
}
