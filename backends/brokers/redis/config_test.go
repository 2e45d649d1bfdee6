package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/redis"
)

func TestNew_NamesEveryFaultAtOnce(t *testing.T) {
	_, err := redis.New(redis.Config{
		Addr: "redis://:hunter2@host", DB: -1, MaxMessageBytes: 3, MaxLen: -1, MaxLens: map[string]int64{"t": -1},
		DialTimeout: -1, Timeout: -1, Auth: redis.Auth{User: "u"},
	})
	for _, text := range []string{
		"Addr is no host:port", "DB is -1", "MaxMessageBytes is 3, allowed is 1024 to", "MaxLen is -1", `MaxLens["t"] is -1`,
		"DialTimeout is -1ns", "Timeout is -1ns", "Auth.Password is empty",
	} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

func TestAuth_TextHoldsNoSecret(t *testing.T) {
	c := redis.Config{Auth: redis.Auth{User: "u", Password: "hunter2"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, c), "hunter2")
		require.NotContains(t, fmt.Sprintf(verb, &c.Auth), "hunter2")
	}
}

// Where nobody listens, the answer comes soon, and nothing is left running.
func TestPublish_NobodyThere(t *testing.T) {
	b, err := redis.New(redis.Config{Addr: "127.0.0.1:1"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	err = b.Publish(ctx, numbered("t", 3))
	require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
	require.Error(t, b.Ping(ctx))
	require.Less(t, time.Since(start), 5*time.Second)
	require.NoError(t, b.Close(ctx))
	require.ErrorIs(t, b.Ping(ctx), backends.ErrClosed)
}
