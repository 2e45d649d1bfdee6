package records_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

func msg(id, aggregate string) *message.Message {
	m := message.NewMessage(id, []byte("p"))
	backends.SetAggregate(m, aggregate)
	return m
}

func with(m *message.Message, key, value string) *message.Message {
	m.Metadata.Set(key, value)
	return m
}

func prepareOne(t *testing.T, m *message.Message) records.Row {
	t.Helper()
	rows, err := records.Prepare("t", []*message.Message{m}, records.DefaultMaxPayload)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return rows[0]
}

func TestPrepare_KeepsOrderAndSplitsOffReservedKeys(t *testing.T) {
	m := with(with(msg("id", "a"), "plain", "v"), backends.CreatedAtKey, "whenever")
	backends.SetSequence(m, 7)
	rows, err := records.Prepare("t", []*message.Message{m, msg("id2", "")}, 10)
	require.NoError(t, err)
	require.Equal(t, []records.Row{
		{Shard: records.Shard("a", ""), MessageID: "id", Topic: "t", Aggregate: "a", Sequence: 7, Payload: []byte("p"), Metadata: []byte(`{"plain":"v"}`)},
		{Shard: records.Shard("", "id2"), MessageID: "id2", Topic: "t", Payload: []byte("p"), Metadata: []byte(`{}`)},
	}, rows)
	require.Equal(t, "whenever", m.Metadata.Get(backends.CreatedAtKey), "the caller's message was changed")
}

func TestPrepare_NoMessagesNoRows(t *testing.T) {
	rows, err := records.Prepare("", nil, 1)
	require.NoError(t, err)
	require.Empty(t, rows)
}

func TestPrepare_ANilPayloadIsAnEmptyOne(t *testing.T) {
	m := msg("id", "")
	m.Payload = nil
	require.Equal(t, []byte{}, prepareOne(t, m).Payload)
}

func TestPrepare_AMessageSentOnLeavesItsSequence(t *testing.T) {
	m := with(msg("id", "a"), backends.TopicKey, "elsewhere")
	m.Metadata.Set(backends.SequenceKey, "nonsense") // of no concern here
	row := prepareOne(t, m)
	require.Equal(t, "a", row.Aggregate)
	require.Zero(t, row.Sequence)
}

func TestPrepare_TheLimitsThemselvesAreAllowed(t *testing.T) {
	long := strings.Repeat("x", records.MaxNameBytes)
	m := with(msg(long, long), "k", strings.Repeat("v", records.MaxMetadataBytes-1))
	m.Payload = make([]byte, 10)
	rows, err := records.Prepare(long, []*message.Message{m}, 10)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

func TestPrepare_NamesFieldProblemAndRemedy(t *testing.T) {
	long := strings.Repeat("x", records.MaxNameBytes+1)
	big := msg("id", "")
	big.Payload = make([]byte, 11)
	for name, c := range map[string]struct {
		topic, field, problem string
		msg                   *message.Message
	}{
		"nil":                     {"t", "message", "is nil", nil},
		"no id":                   {"t", "message id", "is empty", msg("", "")},
		"long id":                 {"t", "message id", "has 256 bytes, at most 255", msg(long, "")},
		"binary id":               {"t", "message id", "UTF-8", msg("\xff", "")},
		"no topic":                {"", "topic", "is empty", msg("id", "")},
		"long topic":              {long, "topic", "at most 255", msg("id", "")},
		"topic with NUL":          {"a\x00", "topic", "NUL", msg("id", "")},
		"long aggregate":          {"t", "aggregate", "at most 255", msg("id", long)},
		"binary aggregate":        {"t", "aggregate", "UTF-8", msg("id", "\xc3")},
		"payload":                 {"t", "payload", "has 11 bytes, at most 10", big},
		"zero sequence":           {"t", "sequence", "positive", with(msg("id", "a"), backends.SequenceKey, "0")},
		"negative sequence":       {"t", "sequence", "positive", with(msg("id", "a"), backends.SequenceKey, "-3")},
		"huge sequence":           {"t", "sequence", "positive", with(msg("id", "a"), backends.SequenceKey, "9223372036854775808")},
		"text for a sequence":     {"t", "sequence", "positive", with(msg("id", "a"), backends.SequenceKey, "one")},
		"sequence without":        {"t", "sequence", "without an aggregate", with(msg("id", ""), backends.SequenceKey, "1")},
		"no metadata key":         {"t", "metadata key", "is empty", with(msg("id", ""), "", "v")},
		"binary metadata key":     {"t", "metadata key", "UTF-8", with(msg("id", ""), "k\xff", "v")},
		"metadata value with NUL": {"t", "metadata[k]", "NUL", with(msg("id", ""), "k", "secret\x00")},
		"binary metadata value":   {"t", "metadata[k]", "UTF-8", with(msg("id", ""), "k", "secret\xff")},
		"much metadata":           {"t", "metadata", "at most 65536", with(msg("id", ""), "k", strings.Repeat("v", records.MaxMetadataBytes))},
	} {
		t.Run(name, func(t *testing.T) {
			rows, err := records.Prepare(c.topic, []*message.Message{c.msg}, 10)
			require.Empty(t, rows)
			var fault *backends.MessageError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, c.field, fault.Field)
			require.Contains(t, fault.Problem, c.problem)
			require.NotEmpty(t, fault.Remedy)
			require.NotContains(t, err.Error(), "secret", "a value is in the error")
		})
	}
}

func TestPrepare_ReportsEveryFaultOfEveryMessage(t *testing.T) {
	_, err := records.Prepare("t", []*message.Message{msg("", "\xff"), msg("good", ""), nil, with(msg("x", ""), "", "v")}, 10)
	var joined interface{ Unwrap() []error }
	require.ErrorAs(t, err, &joined)
	var places []int
	for _, e := range joined.Unwrap() {
		var fault *backends.MessageError
		require.True(t, errors.As(e, &fault))
		places = append(places, fault.Index)
	}
	slices.Sort(places)
	require.Equal(t, []int{0, 0, 2, 3}, places)
}

// What is stored depends on these numbers: a change would move every aggregate
// of every outbox there is.
func TestShard_NeverChanges(t *testing.T) {
	require.Equal(t, []int{18, 0, 9, 21, 1}, []int{
		records.Shard("order-42", "x"), records.Shard("a", ""), records.Shard("🦉", ""), records.Shard("", "0192f0c1-1111-7000-8000-000000000001"), records.Shard("", ""),
	})
}

func TestShard_SpreadsAggregates(t *testing.T) {
	var counts [backends.Shards]int
	for i := range 6400 {
		counts[records.Shard("order-"+string(rune('a'+i%26))+strings.Repeat("0", i%7)+strings.Repeat("1", i/26%60)+strings.Repeat("2", i/1560), "")]++
	}
	for shard, n := range counts {
		require.Positive(t, n, "shard %d is never used", shard)
		require.Less(t, n, 400, "shard %d", shard)
	}
}

func TestErrorText_IsShortAndValid(t *testing.T) {
	require.Empty(t, records.ErrorText(nil))
	require.Equal(t, "plain", records.ErrorText(errors.New("plain")))
	require.Equal(t, "a\uFFFDb\uFFFD", records.ErrorText(errors.New("a\x00b\xff")))
	text := records.ErrorText(errors.New("x" + strings.Repeat("🦉", 200)))
	require.Equal(t, "x"+strings.Repeat("🦉", 127), text, "cut in the middle of a character, or too long")
}

func TestCheckIdentifier(t *testing.T) {
	for _, good := range []string{"", "a", "_", "outbox_2", "abcdefghij"} {
		require.NoError(t, records.CheckIdentifier("Prefix", good, 10), good)
	}
	for _, bad := range []string{"2a", "Outbox", "a-b", "a.b", `a"b`, "a b", "ü", "a;drop", "abcdefghijk", "a\x00"} {
		require.ErrorContains(t, records.CheckIdentifier("Prefix", bad, 10), "Prefix", bad)
	}
}
