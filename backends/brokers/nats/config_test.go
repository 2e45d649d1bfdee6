package nats_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/nats"
)

func tlsConfig(pool *x509.CertPool) *tls.Config {
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func failedIndexes(err error) []int {
	var partial *backends.PartialError
	var out []int
	if errors.As(err, &partial) {
		for _, f := range partial.Failures {
			out = append(out, f.Index)
		}
	}
	return out
}

func TestNew_NamesEveryFaultAtOnce(t *testing.T) {
	_, err := nats.New(nats.Config{
		Servers: []string{"localhost:4222", "nats://user:hunter2@host", "http://host", "nats://host:4222"},
		Auth:    nats.Auth{Password: "hunter2", Token: "hunter2"}, MaxPending: -1, AckTimeout: -1, DialTimeout: -1,
	})
	for _, text := range []string{
		"Servers[0] is no nats://host:port", "Servers[1] holds a user: set Auth", "Servers[2] is no nats://host:port",
		"MaxPending is -1, allowed is 1 to 65536", "AckTimeout is -1ns", "DialTimeout is -1ns",
		"Auth names 2 ways, [User Token]: choose one", "Auth.User is empty",
	} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "hunter2")
	require.NotContains(t, err.Error(), "Servers[3]")
	_, err = nats.New(nats.Config{})
	require.ErrorContains(t, err, "Servers is empty")
}

func TestAuth_TextHoldsNoSecret(t *testing.T) {
	c := nats.Config{Auth: nats.Auth{User: "u", Password: "hunter2", Token: "hunter2"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, c), "hunter2")
		require.NotContains(t, fmt.Sprintf(verb, &c.Auth), "hunter2")
	}
}

// Where nobody listens, the answer comes soon, and nothing is left running.
func TestPublish_NobodyThere(t *testing.T) {
	b, err := nats.New(nats.Config{Servers: []string{"nats://127.0.0.1:1"}})
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
