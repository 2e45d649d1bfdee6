package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
)

func TestNew_NamesEveryFaultAtOnce(t *testing.T) {
	_, err := kafka.New(kafka.Config{
		Brokers: []string{"localhost", "user:hunter2@host:9092"}, MaxMessageBytes: 3, Compression: "rar", DialTimeout: -1,
		SASL: kafka.SASL{Mechanism: "NONE", Password: "hunter2"},
	})
	for _, text := range []string{
		"Brokers[0] is no host:port", "Brokers[1] is no host:port", "MaxMessageBytes is 3, allowed is 1024 to",
		`Compression is "rar", allowed is none, gzip, snappy, lz4 or zstd`, "DialTimeout is -1ns", `SASL.Mechanism is "NONE"`,
	} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "hunter2")

	_, err = kafka.New(kafka.Config{SASL: kafka.SASL{User: "u"}})
	require.ErrorContains(t, err, "Brokers is empty")
	require.ErrorContains(t, err, "names a user but no Mechanism")
	_, err = kafka.New(kafka.Config{Brokers: []string{"h:1"}, SASL: kafka.SASL{Mechanism: "PLAIN"}})
	require.ErrorContains(t, err, "SASL.User is empty")
	_, err = kafka.New(kafka.Config{Brokers: []string{"h:1"}, MaxMessageBytes: 1 << 30})
	require.Error(t, err, "more than a request may hold")
}

func TestSASL_TextHoldsNoSecret(t *testing.T) {
	c := kafka.Config{SASL: kafka.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, c), "hunter2")
		require.NotContains(t, fmt.Sprintf(verb, &c.SASL), "hunter2")
	}
}

func TestSASL_ByEachMechanism(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, "u", "hunter2"), kfake.SeedTopics(1, "t"))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		for password, good := range map[string]bool{"hunter2": true, "hunter3": false} {
			b, err := kafka.New(kafka.Config{Brokers: c.ListenAddrs(), SASL: kafka.SASL{Mechanism: mechanism, User: "u", Password: password}})
			require.NoError(t, err)
			err = b.Publish(t.Context(), numbered("t", 3))
			if good {
				require.NoError(t, err, mechanism)
				require.NoError(t, b.Ping(t.Context()))
			} else {
				require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%s: %v", mechanism, err)
				require.NotContains(t, err.Error(), password)
				require.Error(t, b.Ping(t.Context()))
			}
			require.NoError(t, b.Close(t.Context()))
		}
	}
}

// Where nobody listens, the answer comes soon, and nothing is left running.
func TestPublish_NobodyThere(t *testing.T) {
	b, err := kafka.New(kafka.Config{Brokers: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	err = b.Publish(ctx, numbered("t", 3))
	require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
	require.Error(t, b.Ping(ctx))
	require.Less(t, time.Since(start), 10*time.Second)
	require.NoError(t, b.Close(ctx))
	require.ErrorIs(t, b.Ping(ctx), backends.ErrClosed)
}

// A cluster that goes away is noticed well before the publish limit, by a client
// that has worked so far and by a new one.
func TestPublish_GoneMeanwhile(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	require.NoError(t, err)
	b, err := kafka.New(kafka.Config{Brokers: c.ListenAddrs()})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, b.Publish(ctx, numbered("t", 3)))
	c.Close()
	for range 2 {
		start := time.Now()
		err = b.Publish(ctx, numbered("t", 3))
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
		require.Less(t, time.Since(start), 10*time.Second)
		t.Logf("noticed after %v: %v", time.Since(start), err)
	}
	require.NoError(t, b.Close(ctx))
}
