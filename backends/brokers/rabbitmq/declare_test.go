package rabbitmq_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

func (h *harness) exists(exchange, queue string) bool {
	h.t.Helper()
	ch, err := h.admin.Channel()
	require.NoError(h.t, err)
	defer func() { _ = ch.Close() }()
	if exchange != "" {
		return ch.ExchangeDeclarePassive(exchange, "fanout", true, false, false, false, nil) == nil
	}
	_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil
}

// Nothing is made unless told, and then what the topology names.
func TestDeclare_OnlyWhenTold(t *testing.T) {
	url := server(t)
	for _, told := range []bool{false, true} {
		h := open(t, url, rabbitmq.Config{Declare: told, Topology: rabbitmq.DurableQueue(quorum)})
		topic := name("declared")
		t.Cleanup(func() { h.remove(topic) })
		got := publish(t, h.broker, numbered(topic, 3))
		require.Equal(t, told, len(got) == 0, "%v", got)
		require.Equal(t, told, h.exists("", topic))
		if told {
			_, err := h.channel().QueueDeclarePassive(topic, true, false, false, false, quorum)
			require.NoError(t, err)
			require.Len(t, h.read(topic, 3), 3)
		}

		h = open(t, url, rabbitmq.Config{Declare: told, Topology: rabbitmq.DurablePubSub()})
		topic = name("declared")
		t.Cleanup(func() { require.NoError(t, h.channel().ExchangeDelete(topic, false, false)) })
		got = publish(t, h.broker, numbered(topic, 1))
		require.Equal(t, "rejected permanent", got[0], "no queue is there either way")
		require.Equal(t, told, h.exists(topic, ""))
	}
}

// What is there already in another form is not ours to change: the topic waits for
// an operator, others go on.
func TestDeclare_ThereInAnotherForm(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{Declare: true})
	other, good := h.queue(amqp.Table{"x-max-length": 10}), h.Topic()
	records := spread(numbered(good, 40), 20)
	for i := range 20 {
		if i%2 == 0 {
			records[i].Topic = other
		}
	}
	got := publish(t, h.broker, records)
	for i := range records {
		want := ""
		switch {
		case i < 20 && i%2 == 0:
			want = "rejected unavailable"
		case i%2 == 0:
			want = "not sent retryable"
		}
		require.Equal(t, want, got[i], "record %d", i)
	}
}

// A user who may not write there is an operator's business: unavailable, and no
// other exchange suffers.
func TestPublish_NotAllowed(t *testing.T) {
	own := startPrivate(t)
	own.ctl("add_user", "app", "secret")
	own.ctl("set_permissions", "app", "^$", "^good-.*", "^$")
	h := open(t, own.url(), rabbitmq.Config{Topology: rabbitmq.DurablePubSub(), URL: "amqp://app:secret@" + own.addr() + "/"})
	ch, q, good, bad := h.channel(), h.Topic(), name("good"), name("bad")
	for _, x := range []string{good, bad} {
		require.NoError(t, ch.ExchangeDeclare(x, "fanout", true, false, false, false, nil))
		require.NoError(t, ch.QueueBind(q, "", x, false, nil))
	}
	records := spread(numbered(good, 200), 50)
	for i := range records {
		if i%5 == 0 { // aggregates of their own
			records[i].Topic = bad
		}
	}
	got := publish(t, h.broker, records)
	require.Len(t, got, 40)
	for i, state := range got {
		require.Zero(t, i%5, "record %d of an exchange that it may write to: %s", i, state)
		if i < 50 {
			require.Contains(t, []string{"rejected unavailable", "not sent unavailable"}, state)
		}
	}
	require.Len(t, h.read(q, 160), 160)
	own.ctl("set_permissions", "app", "^$", ".*", "^$")
	require.Empty(t, publish(t, h.broker, records[:5]))
}
