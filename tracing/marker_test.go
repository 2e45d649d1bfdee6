package tracing_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/tracing"
)

const marker = "S3CR3T"

// A marker in payload, metadata values and aggregate is in no line of the log at
// any level, no span, no metric and no last_error, whatever becomes of a message.
func TestMarker_IsNowhere(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = func(try int, r backends.Record) error {
			switch {
			case strings.HasPrefix(r.MessageID, "poison"):
				return backends.Permanent(errTry)
			case strings.HasPrefix(r.MessageID, "retried") && try <= 2:
				return errTry
			case strings.HasPrefix(r.MessageID, "down") && try <= 2:
				return backends.Unavailable(errTry)
			}
			return nil
		}
		for i := range 40 {
			name := []string{"fine", "poison", "retried", "down"}[i%4]
			m := message.NewMessage(fmt.Sprintf("%s-%d", name, i), []byte(marker))
			m.Metadata["customer"] = marker
			m.Metadata["baggage"] = "customer=" + marker
			w.request("POST /orders", "orders-"+name, of(marker+name, m))
		}
		bad := message.NewMessage("bad", []byte(marker))
		bad.Metadata["customer"] = marker + "\x00"
		require.Error(w, w.tel.Publisher(w.store.Publisher(w.store.Begin())).Publish("orders", bad))
		w.forward(5*time.Minute, withTraffic(w))

		for _, s := range w.spans.Ended() {
			text := fmt.Sprint(s.Name(), s.Attributes(), s.Status(), s.Resource(), s.InstrumentationScope())
			for _, e := range s.Events() {
				text += fmt.Sprint(e)
			}
			for _, l := range s.Links() {
				text += fmt.Sprint(l.Attributes, l.SpanContext.TraceState())
			}
			require.NotContains(w, text, marker)
		}
		require.NotContains(w, fmt.Sprintf("%+v", w.metrics()), marker)
		require.NotContains(w, w.logs.String(), marker)
		require.Contains(w, w.logs.String(), "a record was given up")
		dead, err := w.store.Dead(context.WithoutCancel(w.Context()), backends.DeadFilter{})
		require.NoError(w, err)
		require.Len(w, dead, 10)
		for _, d := range dead {
			require.NotEmpty(w, d.LastError)
			require.NotContains(w, d.LastError, marker)
		}
	})
}

// Aggregates are on spans where that was asked for, and there alone.
func TestMarker_AggregatesByRequest(t *testing.T) {
	inWorld(t, func(w *world) {
		w.request("POST /orders", "orders", of(marker, msg("1")))
		w.forward(time.Second)
		for _, name := range []string{"create orders", "publish orders"} {
			require.Equal(w, marker, value(w.span(name).Attributes(), "messaging.kafka.message.key"))
		}
		require.NotContains(w, fmt.Sprintf("%+v", w.metrics())+w.logs.String(), marker)
	}, func(c *tracing.Config) { c.Aggregates = true })
}

// Passwords of servers that cannot be reached are in no error and no log line.
func TestMarker_AddressesOfServers(t *testing.T) {
	var l logs
	log := slog.New(slog.NewTextHandler(&l, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	store, err := postgres.Open(ctx, "postgres://user:"+marker+"@127.0.0.1:1/db", postgres.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	err = store.Check(ctx)
	require.Error(t, err)
	log.Error("all of it", "error", err)
	broker, err := kafka.New(kafka.Config{
		Brokers: []string{"127.0.0.1:1"}, SASL: kafka.SASL{Mechanism: "PLAIN", User: "user", Password: marker},
	})
	require.NoError(t, err)
	err = broker.Publish(ctx, []backends.Record{{MessageID: "1", Topic: "t", Payload: []byte(marker)}})
	require.Error(t, err)
	log.Error("all of it", "error", err)
	require.NoError(t, broker.Close(context.WithoutCancel(ctx)))
	require.NotContains(t, l.String(), marker)
}

// A Watermill publisher that fails and a panic of one say nothing of the message.
func TestMarker_PubSubPanics(t *testing.T) {
	broker, err := pubsub.New(panics{}, pubsub.Config{})
	require.NoError(t, err)
	err = broker.Publish(t.Context(), []backends.Record{{MessageID: "1", Topic: "t", Payload: []byte(marker)}})
	require.Error(t, err)
	require.NotContains(t, err.Error(), marker)
	require.NoError(t, broker.Close(t.Context()))
}

type panics struct{}

func (panics) Publish(_ string, msgs ...*message.Message) error { panic(string(msgs[0].Payload)) }
func (panics) Close() error                                     { return nil }
