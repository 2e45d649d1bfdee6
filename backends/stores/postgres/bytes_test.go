package postgres

import (
	"bytes"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// Large payloads after many small ones, on which the reader has learned to ask
// for many rows: the server sends no more of them than fit, and all come in the
// end.
func TestRead_LargePayloadsAreNotSentInVain(t *testing.T) {
	w := newRandomWorld(t, 0, On)
	lease, err := w.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	r := w.store.Reader().(*reader)
	x := &worldReader{w: w, reader: r}
	require.NoError(t, w.bulkAggregate(t.Context(), "small", 2000))
	require.Equal(t, 2000, x.drainAll(t, lease))
	const large, size = 60, 1 << 20
	require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		msgs := make([]*message.Message, large)
		for i := range msgs {
			msgs[i] = message.NewMessage(watermill.NewUUID(), bytes.Repeat([]byte{byte(i)}, size))
			backends.SetAggregate(msgs[i], "large")
		}
		return w.store.Publisher(tx).Publish("t", msgs...)
	}))
	want := backends.Want{Limit: 1000, MaxBytes: 3 * size}
	r.scan.Begin(lease, nil, time.Now())
	require.NoError(t, w.store.conns.with(t.Context(), func(c *pgx.Conn) error {
		rows, err := c.Query(t.Context(), w.store.stmts.read, r.arguments(r.scan.Allot(lease, want), want)...)
		require.NoError(t, err)
		sent := 0
		var payload pgtype.DriverBytes
		to := make([]any, 13)
		to[7] = &payload
		_, err = pgx.ForEachRow(rows, to, func() error { sent += len(payload); return nil })
		require.Positive(t, sent)
		require.LessOrEqual(t, sent, 3*size)
		return err
	}))
	seen := 0
	for seen < large {
		got, err := r.Read(t.Context(), lease, want)
		require.NoError(t, err)
		require.NotEmpty(t, got)
		require.LessOrEqual(t, len(got), 3)
		for _, rec := range got {
			require.Len(t, rec.Payload, size)
			require.EqualValues(t, seen, rec.Payload[0])
			seen++
		}
		require.NoError(t, r.Settle(t.Context(), lease, deliver(got)))
	}
}
