package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
)

// What is refused before anything is sent is refused alone.
func TestPublish_RefusedHere(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	h := open(t, c.ListenAddrs(), kafka.Config{})
	topic := h.Topic()
	for name, spoil := range map[string]func(r *backends.Record){
		"no topic":             func(r *backends.Record) { r.Topic = "" },
		"topic with a space":   func(r *backends.Record) { r.Topic = "a b" },
		"topic too long":       func(r *backends.Record) { r.Topic = strings.Repeat("t", 250) },
		"topic of two dots":    func(r *backends.Record) { r.Topic = ".." },
		"topic is not ASCII":   func(r *backends.Record) { r.Topic = "bücher" },
		"payload too large":    func(r *backends.Record) { r.Payload = make([]byte, 3_000_000) },
		"metadata too large":   func(r *backends.Record) { r.Metadata = message.Metadata{"k": strings.Repeat("v", 1_000_000)} },
		"key too large":        func(r *backends.Record) { r.Aggregate = strings.Repeat("a", 1_000_000) },
		"a header of our own":  func(r *backends.Record) { r.Metadata = message.Metadata{"_watermill_message_uuid": "other"} },
		"many headers of ones": func(r *backends.Record) { r.Metadata = many(100_000) },
	} {
		t.Run(name, func(t *testing.T) {
			records := numbered(topic, 100)
			for i := range records {
				records[i].Aggregate = fmt.Sprint("a", i%50)
			}
			spoil(&records[20])
			failed := states(t, h.broker.Publish(t.Context(), records))
			want := []string{"20 rejected permanent", "70 not sent retryable"}
			if records[20].Aggregate != "a20" {
				want = want[:1] // its key was spoilt: the other is of no aggregate of it
			}
			require.Equal(t, want, failed)
		})
	}
}

func many(n int) message.Metadata {
	out := message.Metadata{}
	for i := range n {
		out[fmt.Sprint("header-", i)] = ""
	}
	return out
}

// What the default limit lets through, a topic of default settings takes too.
func TestPublish_AsLargeAsAllowed(t *testing.T) {
	h := open(t, seeds(t), kafka.Config{})
	records := numbered(h.Topic(), 1)
	size, err := 998_000, error(nil)
	for ; err == nil; size += 100 {
		records[0].Payload = make([]byte, size)
		err = h.broker.Publish(t.Context(), records)
	}
	require.Equal(t, []string{"0 rejected permanent"}, states(t, err))
	require.ErrorContains(t, err, "MaxMessageBytes allows 1000000")
	require.Greater(t, size, 999_000)
	require.LessOrEqual(t, size, 1_000_000)
}

// Two megabytes of zeros take little when compressed. MaxMessageBytes counts
// them as they are; the topic's own limit counts what arrives.
func TestPublish_Compressible(t *testing.T) {
	for _, codec := range []string{"gzip", "snappy", "lz4", "zstd"} {
		h := open(t, seeds(t), kafka.Config{Compression: codec, MaxMessageBytes: 8 << 20})
		topic := h.Topic()
		records := numbered(topic, 20)
		records[7].Payload = make([]byte, 2_000_000)
		require.NoError(t, h.broker.Publish(t.Context(), records), codec)
		got, err := h.Read(t.Context(), topic, 20)
		require.NoError(t, err)
		for i, m := range got {
			require.Equal(t, records[i].MessageID, m.ID)
			require.Len(t, m.Payload, len(records[i].Payload))
		}

		h = open(t, seeds(t), kafka.Config{Compression: codec})
		require.Equal(t, "7 rejected permanent", states(t, h.broker.Publish(t.Context(), records))[0], codec)
	}
}

// A compacted topic takes no record without a key, and refuses the whole record
// batch. Only the one without a key is to blame.
func TestPublish_CompactedTopic(t *testing.T) {
	h := open(t, seeds(t), kafka.Config{})
	topic := "compacted-" + h.Topic()
	compact := "compact"
	h.create(topic, 1, map[string]*string{"cleanup.policy": &compact})
	records := numbered(topic, 300)
	records[123].Aggregate, records[123].Sequence = "", 0
	require.Equal(t, []string{"123 rejected permanent"}, states(t, h.broker.Publish(t.Context(), records)))
	got, err := h.Read(t.Context(), topic, 299)
	require.NoError(t, err)
	require.Len(t, got, 299)
	good := append(records[:123:123], records[124:]...)
	for i, m := range got {
		require.Equal(t, good[i].MessageID, m.ID)
	}
}

// A topic that the cluster makes when it is asked for is never refused for good.
func TestPublish_TopicsMadeWhenAskedFor(t *testing.T) {
	h := open(t, seeds(t), kafka.Config{AllowAutoTopicCreation: true})
	s := &sender{harness: h}
	for range 5 {
		s.topic, s.next = h.MissingTopic(), 0
		s.all(s.batch(20)) // fails on an answer for good
		s.check()
	}

	// Where the cluster makes none, the topic stays unavailable.
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	h = open(t, c.ListenAddrs(), kafka.Config{AllowAutoTopicCreation: true})
	err = h.broker.Publish(t.Context(), numbered("missing", 1))
	require.Equal(t, []string{"0 rejected unavailable"}, states(t, err))
}

// A topic that is removed is refused for good once the cluster says so. Until
// then, it may be the broker that does not know it yet.
func TestPublish_ATopicIsRemoved(t *testing.T) {
	h := open(t, seeds(t), kafka.Config{})
	topic := h.Topic()
	require.NoError(t, h.broker.Publish(t.Context(), numbered(topic, 10)))
	_, err := h.admin.DeleteTopic(t.Context(), topic)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return backends.ClassOf(h.broker.Publish(ctx, numbered(topic, 1))) == backends.PermanentFailure
	}, 30*time.Second, 10*time.Millisecond)
}
