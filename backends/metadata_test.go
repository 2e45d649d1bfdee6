package backends_test

import (
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

func TestSetAggregate_SetsAndTakesOff(t *testing.T) {
	m := message.NewMessage("id", nil)
	require.Empty(t, backends.Aggregate(m))
	backends.SetAggregate(m, "order-42")
	require.Equal(t, "order-42", backends.Aggregate(m))
	backends.SetAggregate(m, "")
	require.Empty(t, backends.Aggregate(m))
	require.NotContains(t, m.Metadata, backends.AggregateKey)
}

func TestSetSequence_SetsAndTakesOff(t *testing.T) {
	m := message.NewMessage("id", nil)
	_, ok := backends.Sequence(m)
	require.False(t, ok)
	backends.SetSequence(m, 1<<62)
	n, ok := backends.Sequence(m)
	require.True(t, ok)
	require.EqualValues(t, 1<<62, n)
	backends.SetSequence(m, 0)
	require.NotContains(t, m.Metadata, backends.SequenceKey)
}

func TestSequence_OnlyPositiveNumbers(t *testing.T) {
	for _, bad := range []string{"", "0", "-1", "one", "1.5", " 1", "9223372036854775808"} {
		m := message.NewMessage("id", nil)
		m.Metadata.Set(backends.SequenceKey, bad)
		_, ok := backends.Sequence(m)
		require.False(t, ok, bad)
	}
}

func TestSet_AMessageWithoutMetadata(t *testing.T) {
	m := &message.Message{UUID: "id"}
	backends.SetAggregate(m, "")
	backends.SetSequence(m, 0)
	require.Nil(t, m.Metadata)
	backends.SetAggregate(m, "a")
	backends.SetSequence(m, 2)
	require.Equal(t, message.Metadata{backends.AggregateKey: "a", backends.SequenceKey: "2"}, m.Metadata)
}

func record() backends.Record {
	return backends.Record{
		MessageID: "id", Topic: "orders", Aggregate: "a", Sequence: 3, Payload: []byte("p"),
		Metadata:  message.Metadata{"plain": "v"},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.FixedZone("east", 3600)),
	}
}

func TestHeaders_MetadataAndReservedKeys(t *testing.T) {
	r := record()
	want := map[string]string{
		"plain": "v", "outbox_aggregate": "a", "outbox_sequence": "3", "outbox_topic": "orders",
		"outbox_created_at": "2026-01-02T02:04:05.000678Z",
	}
	require.Equal(t, want, maps.Collect(r.Headers()))

	r.Aggregate, r.Sequence, r.Metadata = "", 0, nil
	require.Equal(t, map[string]string{
		"outbox_topic": "orders", "outbox_created_at": "2026-01-02T02:04:05.000678Z",
	}, maps.Collect(r.Headers()), "what a record does not have is no header")
}

func TestHeaders_MayBeLeftAtAnyOne(t *testing.T) {
	r := record()
	for stop := 1; stop <= 5; stop++ {
		seen := 0
		for range r.Headers() {
			if seen++; seen == stop {
				break
			}
		}
		require.Equal(t, stop, seen)
	}
}

func TestMessage_CarriesEverything(t *testing.T) {
	r := record()
	m := r.Message()
	require.Equal(t, "id", m.UUID)
	require.Equal(t, "p", string(m.Payload))
	require.Equal(t, maps.Collect(r.Headers()), map[string]string(m.Metadata))
	require.Equal(t, "a", backends.Aggregate(m))
	n, ok := backends.Sequence(m)
	require.True(t, ok)
	require.EqualValues(t, 3, n)
	m.Metadata.Set("more", "x")
	require.NotContains(t, r.Metadata, "more", "the record's own metadata was changed")
}
