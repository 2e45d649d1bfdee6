package records_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// What is accepted can be stored on every engine and comes back as it was; what
// is not is named.
func FuzzPrepare(f *testing.F) {
	f.Add("t", "id", "a", "1", "", "key", "value", []byte("p"))
	f.Add("", "", "", "", "", "", "", []byte(nil))
	f.Add("t", "id", "", "7", "u", "outbox_topic", "x", []byte{0, 255})
	f.Add("t\x00", "\xff", "🦉", "-1", "", "<\u2028>", "\"\\", []byte("p"))
	f.Fuzz(func(t *testing.T, topic, id, aggregate, sequence, sentOn, key, value string, payload []byte) {
		m := message.NewMessage(id, payload)
		m.Metadata = message.Metadata{key: value}
		for k, v := range map[string]string{backends.AggregateKey: aggregate, backends.SequenceKey: sequence, backends.TopicKey: sentOn} {
			if v != "" {
				m.Metadata[k] = v
			}
		}
		rows, err := records.Prepare(topic, []*message.Message{m}, 64)
		if err != nil {
			require.Nil(t, rows)
			var fault *backends.MessageError
			require.True(t, errors.As(err, &fault))
			require.NotEmpty(t, fault.Field)
			require.NotEmpty(t, fault.Remedy)
			require.True(t, utf8.ValidString(fault.MessageID))
			return
		}
		row := rows[0]
		for _, text := range []string{row.Topic, row.MessageID, row.Aggregate} {
			require.True(t, utf8.ValidString(text) && len(text) <= records.MaxNameBytes && strings.IndexByte(text, 0) < 0)
		}
		require.NotEmpty(t, row.Topic)
		require.NotEmpty(t, row.MessageID)
		require.NotNil(t, row.Payload)
		require.LessOrEqual(t, len(row.Payload), 64)
		require.True(t, row.Shard >= 0 && row.Shard < backends.Shards)
		require.GreaterOrEqual(t, row.Sequence, int64(0))
		require.True(t, row.Sequence == 0 || row.Aggregate != "")
		decoded(t, m.Metadata, row.Metadata)
	})
}

// decoded checks that a column holds exactly the metadata that is not reserved.
func decoded(t *testing.T, md message.Metadata, column []byte) {
	t.Helper()
	got, err := records.DecodeMetadata(column)
	require.NoError(t, err)
	want := message.Metadata{}
	for k, v := range md {
		switch k {
		case backends.AggregateKey, backends.SequenceKey, backends.TopicKey, backends.CreatedAtKey:
		default:
			want[k] = v
		}
	}
	require.Equal(t, want, got)
}

func FuzzMetadata(f *testing.F) {
	f.Add("key", "value", "other", "")
	f.Add("🦉", "\u2028<&>", `quo"te\`, "\t\r\n\x01\x7f")
	f.Add("__proto__", "null", "1", "{}")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		for _, s := range []string{k1, v1, k2, v2} {
			if !utf8.ValidString(s) {
				return // refused before it is encoded
			}
		}
		md := message.Metadata{k1: v1, k2: v2}
		b := records.EncodeMetadata(md)
		require.True(t, utf8.Valid(b))
		decoded(t, md, b)
		require.Equal(t, b, records.EncodeMetadata(message.Metadata{k2: md[k2], k1: md[k1]}), "the same metadata has two forms")
	})
}

// Nothing that a column may hold makes a reader panic.
func FuzzDecodeMetadata(f *testing.F) {
	for _, s := range []string{"", "{}", "null", `{"a":"b"}`, `{"a":1}`, "[]", `{"a":null}`, `{"a":"b","a":"c"}`, "{", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		md, err := records.DecodeMetadata(b)
		require.Equal(t, err == nil, md != nil)
	})
}

func TestDecodeMetadata_RefusesWhatIsNoObjectOfStrings(t *testing.T) {
	for _, bad := range []string{"[]", "1", `{"a":1}`, `{"a":{}}`, "{", `"text"`} {
		_, err := records.DecodeMetadata([]byte(bad))
		require.ErrorContains(t, err, "metadata column", bad)
	}
	for _, empty := range []string{"", "{}", "null", " {} "} {
		md, err := records.DecodeMetadata([]byte(empty))
		require.NoError(t, err, empty)
		require.Equal(t, message.Metadata{}, md)
	}
}
