package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/internal/testenv/private"
)

// An aggregate that goes to a key of the wrong type and then to a good one waits,
// also when it has been there before.
func TestRefused_WrongTypeStopsTheAggregate(t *testing.T) {
	h := open(t, server(t), redis.Config{})
	good, bad := h.Topic(), h.MissingTopic()
	records := append(append(numbered(good, 2), numbered(bad, 2)...), numbered(good, 3)...)
	other := numbered(good, 2)
	for i := range other {
		other[i].Aggregate = "other"
	}
	err := h.broker.Publish(t.Context(), append(records, other...))
	require.Equal(t, "2 rejected permanent, 3 rejected permanent, 4 not sent retryable, 5 not sent retryable, 6 not sent retryable", states(t, err))
	got, err := h.Read(t.Context(), good, 4)
	require.NoError(t, err)
	require.Len(t, got, 4)
}

func TestRefused_NoMemoryIsUnavailable(t *testing.T) {
	server(t)
	s := private.Start(t, "redis", "--maxmemory-policy noeviction")
	h := open(t, s.Addr, redis.Config{})
	topic := h.Topic()
	records := numbered(topic, 3)
	require.NoError(t, h.broker.Publish(t.Context(), records[:1]))
	require.NoError(t, h.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	err := h.broker.Publish(t.Context(), records[1:])
	require.Equal(t, "0 rejected unavailable, 1 not sent unavailable", states(t, err))
	require.ErrorContains(t, err, "raise maxmemory")
	require.NoError(t, h.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, h.broker.Publish(t.Context(), records[1:]))
	got, err := h.Read(t.Context(), topic, 3)
	require.NoError(t, err)
	require.Len(t, got, 3, "nothing of the refused transaction was done")
}

// Memory that runs out in the middle of batches: all or nothing of each.
func TestRefused_MemoryRunsOutKeepsOrder(t *testing.T) {
	server(t)
	s := private.Start(t, "redis", "--maxmemory-policy noeviction", "--maxmemory 8mb")
	h := open(t, s.Addr, redis.Config{})
	w := private.NewSender(t, h, h.Topic())
	var left []backends.Record
	for left == nil {
		left, _ = w.Try(w.Batch(1000), 10*time.Second)
	}
	require.Len(t, left, 1000)
	require.NoError(t, h.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	w.All(left)
	w.Check()
}

func TestRefused_AnotherUsersKeyLetsOthersGoOn(t *testing.T) {
	server(t)
	s := private.Start(t, "redis")
	h := open(t, s.Addr, redis.Config{})
	for _, user := range [][]any{
		{"acl", "setuser", "app", "on", ">hunter2", "~good*", "+xadd", "+multi", "+exec", "+client"},
		{"acl", "setuser", "bare", "on", ">hunter2", "~good*", "+xadd", "+client"},
	} {
		require.NoError(t, h.client.Do(t.Context(), user...).Err())
	}
	as := func(user, password string) *redis.Broker {
		b, err := redis.New(redis.Config{Addr: s.Addr, Auth: redis.Auth{User: user, Password: password}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
		return b
	}
	var records []backends.Record
	for i := range 10 {
		r := numbered([]string{"good", "secret"}[i%2], 1)[0]
		r.Aggregate = "a" + strconv.Itoa(i%4)
		records = append(records, r)
	}
	err := as("app", "hunter2").Publish(t.Context(), records)
	require.ErrorContains(t, err, "grant XADD, MULTI and EXEC")
	require.Equal(t, "1 rejected unavailable, 3 not sent unavailable, 5 not sent unavailable, 7 not sent unavailable, 9 not sent unavailable", states(t, err))
	got, err := h.Read(t.Context(), "good", 5)
	require.NoError(t, err)
	require.Len(t, got, 5, "those beside it were sent once")

	for user, password := range map[string]string{"bare": "hunter2", "app": "hunter3"} {
		err = as(user, password).Publish(t.Context(), records)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		require.NotContains(t, err.Error(), "hunter")
	}
	got, err = h.Read(t.Context(), "good", 5)
	require.NoError(t, err)
	require.Len(t, got, 5, "without a transaction nothing is sent")
}

func TestTLS_WithAPassword(t *testing.T) {
	server(t)
	cert, key, pool := private.Certificate(t)
	addr := fmt.Sprintf("127.0.0.1:%d", private.FreePort(t))
	s := private.Start(t, "redis", "--tls-port", addr[len("127.0.0.1:"):], "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
	h := open(t, s.Addr, redis.Config{})
	require.NoError(t, h.client.ConfigSet(t.Context(), "requirepass", "hunter2").Err())
	for name, c := range map[string]redis.Config{
		"good":           {TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Auth: redis.Auth{Password: "hunter2"}},
		"unknown signer": {TLS: &tls.Config{MinVersion: tls.VersionTLS12}, Auth: redis.Auth{Password: "hunter2"}},
		"wrong password": {TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Auth: redis.Auth{Password: "hunter3"}},
		"no password":    {TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	} {
		c.Addr = addr
		b, err := redis.New(c)
		require.NoError(t, err)
		err = errors.Join(b.Publish(t.Context(), numbered("t", 3)), b.Ping(t.Context()))
		if name == "good" {
			require.NoError(t, err)
		} else {
			require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%s: %v", name, err)
			require.NotContains(t, err.Error(), "hunter")
		}
		require.NoError(t, b.Close(t.Context()))
	}
}
