package nats_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/internal/testenv/private"
)

// spread gives each record an aggregate of its own.
func spread(records []backends.Record) []backends.Record {
	for i := range records {
		records[i].Aggregate = "order-" + records[i].MessageID
	}
	return records
}

func TestRefused_StreamFullIsUnavailable(t *testing.T) {
	h := open(t, server(t), nats.Config{})
	full := h.stream(jetstream.StreamConfig{MaxMsgs: 5, Discard: jetstream.DiscardNew})
	good := h.Topic()
	records := append(numbered(full, 8), spread(numbered(good, 8))...)
	err := h.broker.Publish(t.Context(), records)
	require.Equal(t, "5 rejected unavailable, 6 not sent retryable, 7 not sent retryable", states(t, err))
	require.ErrorContains(t, err, "maximum messages exceeded")
	_, err = h.Read(t.Context(), good, 8)
	require.NoError(t, err, "other topics go on")

	// A consumer makes room, and the rest follows in order.
	s, err := h.js.Stream(t.Context(), full)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context()))
	require.NoError(t, h.broker.Publish(t.Context(), records[5:8]))
	got, err := h.Read(t.Context(), full, 3)
	require.NoError(t, err)
	for i, m := range got {
		require.Equal(t, records[5+i].MessageID, m.ID)
	}
}

// Room that appears while a batch is on its way lets no record overtake one of
// its aggregate that was refused.
func TestRefused_StreamFullNowAndThenKeepsOrder(t *testing.T) {
	h := open(t, server(t), nats.Config{})
	topic := h.stream(jetstream.StreamConfig{MaxMsgs: 40, Discard: jetstream.DiscardNew})
	s, err := h.js.Stream(t.Context(), topic)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	records := numbered(topic, 1000)
	for i := range records {
		records[i].Aggregate = string(rune('a' + i%20))
	}
	done := make(chan error, 1)
	go func() { // what a forwarder does
		left := records
		for len(left) > 0 && ctx.Err() == nil {
			err := h.broker.Publish(ctx, left)
			var again []backends.Record
			for _, i := range failedIndexes(err) {
				again = append(again, left[i])
			}
			left = again
		}
		done <- ctx.Err()
	}()
	last, seen := map[string]string{}, 0
	for next := uint64(1); seen < len(records); {
		m, err := s.GetMsg(ctx, next)
		if err != nil {
			require.NoError(t, ctx.Err(), "%d of %d came", seen, len(records))
			continue
		}
		require.NoError(t, s.DeleteMsg(ctx, next))
		a, n := m.Header.Get(backends.AggregateKey), m.Header.Get(backends.SequenceKey)
		require.True(t, len(last[a]) < len(n) || last[a] < n, "aggregate %s: %s after %s", a, n, last[a])
		last[a] = n
		next, seen = next+1, seen+1
	}
	require.NoError(t, <-done)
}

func TestRefused_WhatHeadersCannotCarry(t *testing.T) {
	h := open(t, server(t), nats.Config{})
	topic := h.Topic()
	for name, spoil := range map[string]func(*backends.Record){
		"a command":            func(r *backends.Record) { r.Metadata = message.Metadata{"nats-Rollup": "all"} },
		"the id's own header":  func(r *backends.Record) { r.Metadata = message.Metadata{"_watermill_message_uuid": "x"} },
		"a key with a colon":   func(r *backends.Record) { r.Metadata = message.Metadata{"a:b": "x"} },
		"a key with a space":   func(r *backends.Record) { r.Metadata = message.Metadata{"a b": "x"} },
		"no key":               func(r *backends.Record) { r.Metadata = message.Metadata{"": "x"} },
		"a status":             func(r *backends.Record) { r.Metadata, r.Payload = message.Metadata{"Status": "404"}, nil },
		"an aggregate changed": func(r *backends.Record) { r.Aggregate = "a " },
		"an id changed":        func(r *backends.Record) { r.MessageID = "a\r\nb" },
		"no topic":             func(r *backends.Record) { r.Topic = "" },
		"a wildcard":           func(r *backends.Record) { r.Topic = "orders.*" },
		"an empty token":       func(r *backends.Record) { r.Topic = "orders..placed" },
		"the server's API":     func(r *backends.Record) { r.Topic = "$JS.API.STREAM.DELETE." + topic },
		"an inbox":             func(r *backends.Record) { r.Topic = "_INBOX.x" },
		"more than the server": func(r *backends.Record) { r.Payload = make([]byte, 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			records := spread(numbered(topic, 3))
			spoil(&records[1])
			require.Equal(t, "1 rejected permanent", states(t, h.broker.Publish(t.Context(), records)))
		})
	}
}

// A subscriber that is no stream takes the message and says nothing: nothing is
// known but that no stream acknowledged. Other topics go on.
func TestRefused_PlainSubscriberInsteadOfAStream(t *testing.T) {
	h := open(t, server(t), nats.Config{AckTimeout: 300 * time.Millisecond})
	bare, good := "bare-"+watermill.NewShortUUID(), h.Topic()
	_, err := h.conn.Subscribe(bare, func(*client.Msg) {})
	require.NoError(t, err)
	require.NoError(t, h.conn.Flush())
	records := append(numbered(bare, 2), numbered(good, 50)...)
	for i := range records[2:] {
		records[2+i].Aggregate = "good"
	}
	start := time.Now()
	require.Equal(t, "0 unknown unavailable, 1 not sent retryable", states(t, h.broker.Publish(t.Context(), records)))
	require.Less(t, time.Since(start), 3*time.Second)
	_, err = h.Read(t.Context(), good, 50)
	require.NoError(t, err)
}

// A row that is sent twice is stored once; two rows with one message id, twice.
func TestDuplicates_TheRowCountsNotTheMessageID(t *testing.T) {
	h := open(t, server(t), nats.Config{})
	topic := h.Topic()
	records := numbered(topic, 3)
	records[2].MessageID = records[1].MessageID
	for range 3 {
		require.NoError(t, h.broker.Publish(t.Context(), records))
	}
	got, err := h.Read(t.Context(), topic, 3)
	require.NoError(t, err)
	require.Len(t, got, 3)
}

const rights = `
authorization { users = [
  { user: admin, password: admin-secret }
  { user: app, password: app-secret, permissions: { publish: { allow: ["good", "$JS.API.STREAM.NAMES"] }, subscribe: { allow: ["_INBOX.>"] } } }
  { user: deaf, password: deaf-secret, permissions: { publish: { allow: ["good"] }, subscribe: { deny: [">"] } } }
] }`

func TestAuth_UserAndRights(t *testing.T) {
	server(t)
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte(rights), 0o600))
	s := private.Start(t, "nats", "-c", file)
	admin, err := client.Connect("nats://admin:admin-secret@" + s.Addr)
	require.NoError(t, err)
	defer admin.Close()
	js, err := jetstream.New(admin)
	require.NoError(t, err)
	for _, topic := range []string{"good", "secret"} {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
		require.NoError(t, err)
	}
	as := func(user, password string) *nats.Broker {
		b, err := nats.New(nats.Config{Servers: []string{"nats://" + s.Addr}, AckTimeout: time.Second, Auth: nats.Auth{User: user, Password: password}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
		return b
	}
	records := append(spread(numbered("good", 3)), spread(numbered("secret", 2))...)
	app := as("app", "app-secret")
	start := time.Now()
	require.Equal(t, "3 rejected unavailable, 4 rejected unavailable", states(t, app.Publish(t.Context(), records)))
	require.Less(t, time.Since(start), 900*time.Millisecond, "the server's word was not heard")
	err = as("deaf", "deaf-secret").Publish(t.Context(), records[:1])
	require.Equal(t, "0 unknown unavailable", states(t, err))
	require.ErrorContains(t, err, "grant _INBOX.>")
	for _, wrong := range []string{"", "hunter2"} {
		err = as("app", wrong).Publish(t.Context(), records)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestTLS_WithAToken(t *testing.T) {
	server(t)
	cert, key, pool := private.Certificate(t)
	s := private.Start(t, "nats", "--tls", "--tlscert", cert, "--tlskey", key, "--auth", "hunter2")
	secure := tlsConfig(pool)
	admin, err := client.Connect("nats://"+s.Addr, client.Secure(secure), client.Token("hunter2"))
	require.NoError(t, err)
	defer admin.Close()
	js, err := jetstream.New(admin)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "t"})
	require.NoError(t, err)
	for name, c := range map[string]nats.Config{
		"good":           {TLS: secure, Auth: nats.Auth{Token: "hunter2"}},
		"unknown signer": {TLS: tlsConfig(nil), Auth: nats.Auth{Token: "hunter2"}},
		"wrong token":    {TLS: secure, Auth: nats.Auth{Token: "hunter3"}},
	} {
		c.Servers = []string{"tls://" + s.Addr}
		b, err := nats.New(c)
		require.NoError(t, err)
		err = b.Publish(t.Context(), numbered("t", 3))
		if name == "good" {
			require.NoError(t, err)
			require.NoError(t, b.Ping(t.Context()))
		} else {
			require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%s: %v", name, err)
			require.NotContains(t, err.Error(), "hunter")
			require.Error(t, b.Ping(t.Context()))
		}
		require.NoError(t, b.Close(t.Context()))
	}
}
