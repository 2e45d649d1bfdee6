package crashtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// 1. Transaction A gets its id, and B a higher one.
// 2. B publishes for the aggregate and commits; it may be sent from here on.
// 3. A publishes for the aggregate and commits.
// B's message must arrive first, although A's transaction id is the lower.
func TestOrder_TheLowerTransactionIDWritesSecond(t *testing.T) {
	w := newWorld(t)
	first, second := start(t, w.schema), start(t, w.schema)
	w.shared(2)
	for i := range 100 {
		aggregate := fmt.Sprintf("pair%d", i)
		a, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		var idA, idB string
		require.NoError(t, a.QueryRow(t.Context(), `select pg_current_xact_id()::text`).Scan(&idA))
		b, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, b.QueryRow(t.Context(), `select pg_current_xact_id()::text`).Scan(&idB))
		require.NotEqual(t, idA, idB)

		ofB, ofA := about(aggregate), about(aggregate)
		require.NoError(t, w.store.Publisher(b).Publish(w.topic, ofB))
		require.NoError(t, b.Commit(t.Context()))
		if i%2 == 0 { // half of them while B's message may already be on its way
			w.pause(5 * time.Millisecond)
		}
		require.NoError(t, w.store.Publisher(a).Publish(w.topic, ofA))
		require.NoError(t, a.Commit(t.Context()))
		for _, m := range []*message.Message{ofB, ofA} {
			w.committed[m.UUID] = aggregate
		}
	}
	w.emptied(20 * time.Second)
	first.stop()
	second.stop()
	require.Zero(t, w.check(), "nothing was killed, so nothing may be sent twice")
}

func about(aggregate string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte("event"))
	backends.SetAggregate(m, aggregate)
	return m
}
