package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var appendCases = []testCase{
	{"Append/visible after commit only", func(f *fixture) {
		s := f.open("a")
		tx := f.begin()
		require.NoError(f, tx.Publisher().Publish("t", msg("x", "1")))
		require.Empty(f, s.read(10), "an uncommitted record was read")
		f.commit(tx)
		require.Equal(f, []string{"1"}, payloads(s.readSome(10)))
	}},
	{"Append/rollback leaves nothing and no gap", func(f *fixture) {
		f.series("t", "x", 2)
		tx := f.begin()
		require.NoError(f, tx.Publisher().Publish("t", msg("x", "gone"), msg("", "gone")))
		require.NoError(f, tx.Rollback(f.Context()))
		f.publish("t", msg("x", "3"))
		got := f.open("a").drain(10)
		require.Equal(f, numbers(1, 3), payloads(got))
		require.Equal(f, upTo(3), sequences(got))
	}},
	{"Append/call order is kept", func(f *fixture) {
		msgs := make([]*message.Message, 200)
		for i := range msgs {
			msgs[i] = msg("x", strconv.Itoa(i+1))
		}
		f.publish("t", msgs...)
		got := f.open("a").drain(7)
		require.Equal(f, numbers(1, 200), payloads(got))
		require.Equal(f, upTo(200), sequences(got))
	}},
	{"Append/several aggregates in one call", func(f *fixture) {
		var msgs []*message.Message
		for i := range 60 {
			msgs = append(msgs, msg([]string{"b", "a", ""}[i%3], strconv.Itoa(i/3+1)))
		}
		f.publish("t", msgs...)
		f.publish("t", msg("a", "21"), msg("b", "21"))
		got := f.open("a").drain(100)
		for _, a := range []string{"a", "b"} {
			require.Equal(f, numbers(1, 21), payloads(of(got, a)))
			require.Equal(f, upTo(21), sequences(of(got, a)))
		}
		require.Len(f, of(got, ""), 20)
		for _, r := range of(got, "") {
			require.Zero(f, r.Sequence)
		}
	}},
	{"Append/sequences count by topic and aggregate, a supplied one stands", func(f *fixture) {
		supplied := msg("y", "s")
		backends.SetSequence(supplied, 41)
		f.publish("t", msg("x", "1"))
		f.publish("u", msg("x", "1"), supplied)
		f.publish("t", msg("x", "2"))
		for _, r := range f.open("a").drain(10) {
			want, _ := strconv.ParseInt(string(r.Payload), 10, 64)
			if r.Aggregate == "y" {
				want = 41
			}
			require.Equal(f, want, r.Sequence)
		}
	}},
	{"Append/bytes and metadata are carried as they are", carried},
	{"Append/many in one call", func(f *fixture) {
		msgs := make([]*message.Message, 10_000)
		for i := range msgs {
			msgs[i] = msg("a"+strconv.Itoa(i%100), strconv.Itoa(i/100+1))
		}
		f.publish("t", msgs...)
		s := f.open("a")
		var got []backends.Record
		for {
			part := s.read(2000)
			if len(part) == 0 {
				break
			}
			s.settle(deliveries(part)...)
			got = append(got, part...)
		}
		require.Len(f, got, 10_000)
		for i := range 100 {
			require.Equal(f, upTo(100), sequences(of(got, "a"+strconv.Itoa(i))))
		}
	}},
	{"Append/no messages is no work", func(f *fixture) {
		tx := f.begin()
		require.NoError(f, tx.Publisher().Publish("t"))
		require.NoError(f, tx.Publisher().Close())
		f.commit(tx)
		require.Empty(f, f.open("a").read(10))
	}},
	{"Append/one message id twice is two records", func(f *fixture) {
		m := msg("x", "1")
		n := message.NewMessage(m.UUID, []byte("2"))
		backends.SetAggregate(n, "x")
		f.publish("t", m, n)
		f.publish("t", m)
		require.Equal(f, []string{"1", "2", "1"}, payloads(f.open("a").drain(10)))
	}},
	{"Append/an ended transaction says so", func(f *fixture) {
		for _, end := range []func(Tx) error{
			func(tx Tx) error { return tx.Commit(f.Context()) },
			func(tx Tx) error { return tx.Rollback(f.Context()) },
		} {
			tx := f.begin()
			p := tx.Publisher()
			require.NoError(f, end(tx))
			require.ErrorIs(f, p.Publish("t", msg("x", "1")), backends.ErrTransactionDone)
		}
		require.Empty(f, f.open("a").read(10))
	}},
	{"Append/bad messages are refused and the transaction goes on", refused},
	{"Append/a message sent on keeps its aggregate and not its sequence", func(f *fixture) {
		f.publish("t", msg("x", "1"))
		got := f.open("a").drain(10)
		again := got[0].Message()
		f.publish("u", again)
		got = f.open("b").drain(10)
		if len(got) == 0 { // a has the shards
			got = f.open("a").drain(10)
		}
		require.Len(f, got, 1)
		require.Equal(f, "u", got[0].Topic)
		require.Equal(f, "x", got[0].Aggregate)
		require.EqualValues(f, 1, got[0].Sequence)
		require.Empty(f, got[0].Metadata)
	}},
}

func carried(f *fixture) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	bodies := [][]byte{
		every,
		{},
		nil,
		{0},
		[]byte(`"word"`), []byte("null"), []byte("true"), []byte("12345678901234567890"),
		[]byte(`{"b":1, "a" : 2,"a":3}`), []byte("<&>"), []byte("\u2028 🦉"), bytes.Repeat([]byte{0xff, 0}, 100_000),
	}
	metadata := map[string]string{
		"plain": "value", "empty": "", "emoji 🦉": "🦉🦉", `quo"te\`: `va"l\ue`, "line": "a\nb\r\tc", "html": "<&>\u2028", "traceparent": "00-1-2-01",
	}
	var msgs []*message.Message
	for i, b := range bodies {
		m := message.NewMessage(fmt.Sprintf("id-🦉-%d", i), b)
		backends.SetAggregate(m, `o'Brien "42" \ 🦉`)
		for k, v := range metadata {
			m.Metadata.Set(k, v)
		}
		msgs = append(msgs, m)
	}
	f.publish("orders.🦉-v1", msgs[0])
	f.publish("orders.🦉-v1", msgs[1:]...)
	got := f.open("a").drain(5)
	require.Len(f, got, len(bodies))
	for i, r := range got {
		require.True(f, bytes.Equal(bodies[i], r.Payload), "payload %d", i)
		require.Equal(f, message.Metadata(metadata), r.Metadata)
		require.Equal(f, fmt.Sprintf("id-🦉-%d", i), r.MessageID)
		require.Equal(f, `o'Brien "42" \ 🦉`, r.Aggregate)
		require.Equal(f, "orders.🦉-v1", r.Topic)
		require.False(f, r.CreatedAt.IsZero())
		require.GreaterOrEqual(f, r.Age.Nanoseconds(), int64(0))
		require.Zero(f, r.Attempts)
	}
}

func refused(f *fixture) {
	bad := map[string]*message.Message{
		"message id":  message.NewMessage("", nil),
		"aggregate":   msg(strings.Repeat("x", 1<<20), ""),
		"UTF-8":       msg("\xff", ""),
		"NUL":         msg("a\x00b", ""),
		"metadata[k]": msg("x", ""),
		"sequence":    msg("x", ""),
		"without":     msg("", ""),
		"is nil":      nil,
	}
	bad["metadata[k]"].Metadata.Set("k", "\xff")
	bad["sequence"].Metadata.Set(backends.SequenceKey, "-1")
	backends.SetSequence(bad["without"], 3)

	tx := f.begin()
	p := tx.Publisher()
	for want, m := range bad {
		err := p.Publish("t", msg("x", "never"), m)
		require.ErrorContains(f, err, want)
		var fault *backends.MessageError
		require.True(f, errors.As(err, &fault))
		require.Equal(f, 1, fault.Index)
		require.NotEmpty(f, fault.Remedy)
	}
	require.ErrorContains(f, p.Publish("", msg("x", "never")), "topic")
	require.ErrorContains(f, p.Publish(strings.Repeat("t", 300), msg("x", "never")), "topic")
	require.NoError(f, p.Publish("t", msg("x", "good")), "the transaction must stay usable")
	f.commit(tx)
	require.Equal(f, []string{"good"}, payloads(f.open("a").drain(10)))
}
