package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

// states are the answers by index: state and class.
func states(t testing.TB, err error) map[int]string {
	t.Helper()
	out := map[int]string{}
	var partial *backends.PartialError
	if err != nil {
		require.True(t, errors.As(err, &partial), "%v", err)
		for _, f := range partial.Failures {
			out[f.Index] = fmt.Sprintf("%s %s", f.State, backends.ClassOf(f.Err))
		}
	}
	return out
}

// spread puts records into n aggregates.
func spread(records []backends.Record, n int) []backends.Record {
	for i := range records {
		records[i].Aggregate = "a" + strconv.Itoa(i%n)
		records[i].Sequence = int64(i/n + 1)
		records[i].Payload = []byte(strconv.Itoa(i/n + 1))
	}
	return records
}

func publish(t testing.TB, b backends.Broker, records []backends.Record) map[int]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return states(t, b.Publish(ctx, records))
}

// What is refused before anything is sent is refused alone.
func TestPublish_RefusedHere(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{})
	topic := h.Topic()
	for name, spoil := range map[string]func(r *backends.Record){
		"no topic":            func(r *backends.Record) { r.Topic = "" },
		"topic too long":      func(r *backends.Record) { r.Topic = strings.Repeat("t", 256) },
		"topic is no UTF-8":   func(r *backends.Record) { r.Topic = "\xff" },
		"id too long":         func(r *backends.Record) { r.MessageID = strings.Repeat("i", 256) },
		"payload too large":   func(r *backends.Record) { r.Payload = make([]byte, 16<<20+1) },
		"metadata too large":  func(r *backends.Record) { r.Metadata = message.Metadata{"k": strings.Repeat("v", 128<<10)} },
		"key too long":        func(r *backends.Record) { r.Metadata = message.Metadata{strings.Repeat("k", 256): ""} },
		"header of our own":   func(r *backends.Record) { r.Metadata = message.Metadata{"_watermill_message_uuid": "x"} },
		"carbon copies":       func(r *backends.Record) { r.Metadata = message.Metadata{"CC": "x"} },
		"blind carbon copies": func(r *backends.Record) { r.Metadata = message.Metadata{"BCC": "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			records := spread(numbered(topic, 100), 50)
			spoil(&records[20])
			require.Equal(t, map[int]string{20: "rejected permanent", 70: "not sent retryable"}, publish(t, h.broker, records))
		})
	}
}

// The largest metadata that the check lets pass is taken by the server.
func TestPublish_MetadataUpToTheFrame(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{})
	topic := h.Topic()
	for n := 128<<10 - 700; n < 128<<10; n++ {
		r := numbered(topic, 1)
		r[0].Metadata = message.Metadata{"k": strings.Repeat("v", n)}
		if got := publish(t, h.broker, r); len(got) > 0 {
			require.Equal(t, "rejected permanent", got[0])
			require.Greater(t, n, 128<<10-700, "much less than a frame was refused")
			return
		}
	}
	t.Fatal("a frame's worth of metadata was taken")
}

func TestPublish_NoQueueGetsIt(t *testing.T) {
	for hold, class := range map[bool]string{false: "permanent", true: "unavailable"} {
		t.Run(class, func(t *testing.T) {
			h := open(t, server(t), rabbitmq.Config{Topology: rabbitmq.DurablePubSub(), HoldUnroutable: hold})
			ch, lonely, heard := h.channel(), name("lonely"), name("heard")
			for _, x := range []string{lonely, heard} {
				require.NoError(t, ch.ExchangeDeclare(x, "fanout", true, false, false, false, nil))
				t.Cleanup(func() { require.NoError(t, h.channel().ExchangeDelete(x, false, false)) })
			}
			q := h.Topic()
			require.NoError(t, ch.QueueBind(q, "", heard, false, nil))
			records := spread(numbered(heard, 200), 20)
			for i := range records {
				if i%20 < 5 { // aggregates a0 to a4
					records[i].Topic = lonely
				}
			}
			got := publish(t, h.broker, records)
			require.Len(t, got, 50)
			for i, state := range got {
				want := "rejected " + class
				if i >= 20 {
					want = "not sent retryable"
				}
				require.Equal(t, want, state)
			}
			require.Len(t, h.read(q, 150), 150)

			require.NoError(t, ch.QueueBind(q, "", lonely, false, nil))
			require.Empty(t, publish(t, h.broker, records[:5]))
		})
	}
}

func (h *harness) read(queue string, n int) []string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	got, err := h.Read(ctx, queue, n)
	require.NoError(h.t, err)
	var out []string
	for _, m := range got {
		out = append(out, m.Headers[backends.AggregateKey]+" "+m.Headers[backends.SequenceKey])
	}
	return out
}

// One message id twice in a batch: the returned one is the failed one.
func TestPublish_OneIDToTwoTopics(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{Channels: 1})
	good, gone := h.Topic(), name("gone")
	records := spread(numbered(good, 40), 40)
	for i := range records {
		records[i].MessageID = "same"
		if i%3 == 0 {
			records[i].Topic = gone
		}
	}
	got := publish(t, h.broker, records)
	for i := range records {
		require.Equal(t, i%3 == 0, got[i] == "rejected permanent", "record %d: %q", i, got[i])
	}
	require.Len(t, h.read(good, 26), 26)
}

// A missing exchange costs the channel. It is the record's for it alone that fails,
// also when the exchange was there a moment ago.
func TestPublish_MissingExchange(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{Topology: rabbitmq.DurablePubSub()})
	ch, there, gone := h.channel(), name("there"), name("gone")
	for _, x := range []string{there, gone} {
		require.NoError(t, ch.ExchangeDeclare(x, "fanout", true, false, false, false, nil))
	}
	t.Cleanup(func() { require.NoError(t, h.channel().ExchangeDelete(there, false, false)) })
	q := h.Topic()
	for _, x := range []string{there, gone} {
		require.NoError(t, ch.QueueBind(q, "", x, false, nil))
	}
	records := spread(numbered(there, 500), 100)
	for i := range records {
		if i%10 == 3 {
			records[i].Topic = gone
		}
	}
	require.Empty(t, publish(t, h.broker, records))
	require.Len(t, h.read(q, 500), 500)

	require.NoError(t, ch.ExchangeDelete(gone, false, false))
	// The channels take it for proven: what is on the way beside it is unknown, and
	// the next attempt knows whose fault it was.
	left := records
	for round := 0; len(left) > 0 && round < 2; round++ {
		got := publish(t, h.broker, left)
		var again []backends.Record
		for i, state := range got {
			if left[i].Topic != gone {
				require.NotContains(t, state, "permanent", "record %d of a good exchange", i)
				again = append(again, left[i])
			} else if round == 1 {
				require.Contains(t, []string{"rejected permanent", "not sent retryable"}, state)
			}
		}
		left = nil
		if round == 0 {
			for i, r := range records {
				if _, failed := got[i]; failed {
					left = append(left, r)
				}
			}
			require.NotEmpty(t, left)
			continue
		}
		require.Empty(t, again, "records of the good exchange still fail")
	}
}

// A full queue nacks. Nothing overtakes what it nacked, while it is drained.
func TestPublish_AFullQueueRejects(t *testing.T) {
	for kind, args := range map[string]amqp.Table{"classic": {}, "quorum": {"x-queue-type": "quorum"}} {
		t.Run(kind, func(t *testing.T) {
			h := open(t, server(t), rabbitmq.Config{})
			args["x-max-length"], args["x-overflow"] = 50, "reject-publish"
			full, other := h.queue(args), h.Topic()
			records := append(spread(numbered(full, 400), 40), numbered(other, 20)...)
			got := publish(t, h.broker, records)
			require.NotEmpty(t, got)
			require.Contains(t, got, 399)
			for i, state := range got {
				require.Less(t, i, 400, "the other topic suffers")
				require.Contains(t, []string{"rejected unavailable", "not sent retryable"}, state)
			}
			require.Len(t, h.read(other, 20), 20)

			// Read while it is sent to, until all is there.
			last, seen := map[string]int{}, 0
			left := records[:400]
			for round := 0; seen < 400; round++ {
				require.Less(t, round, 500)
				got := publish(t, h.broker, left)
				var again []backends.Record
				for i, r := range left {
					if _, failed := got[i]; failed {
						again = append(again, r)
					}
				}
				left = again
				seen = 0
				clear(last)
				for _, m := range h.read(full, 0) {
					a, n, _ := strings.Cut(m, " ")
					if n, _ := strconv.Atoi(n); n > last[a] {
						require.Equal(t, last[a]+1, n, "aggregate %s", a)
						last[a], seen = n, seen+1
					}
				}
			}
		})
	}
}
