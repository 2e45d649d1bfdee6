package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

func open(t *testing.T, cfg memory.Config) *memory.Store {
	t.Helper()
	s, err := memory.New(cfg)
	require.NoError(t, err)
	return s
}

func msg(aggregate, payload string) *message.Message {
	m := message.NewMessage(aggregate+"/"+payload, []byte(payload))
	backends.SetAggregate(m, aggregate)
	return m
}

// publish appends in a transaction of its own.
func publish(t *testing.T, s *memory.Store, topic string, msgs ...*message.Message) {
	t.Helper()
	tx := s.Begin()
	require.NoError(t, s.Publisher(tx).Publish(topic, msgs...))
	require.NoError(t, tx.Commit())
}

func readAll(t *testing.T, s *memory.Store) []backends.Record {
	t.Helper()
	l, err := s.Lease(t.Context(), "o", time.Minute)
	require.NoError(t, err)
	got, err := s.Reader().Read(t.Context(), l, backends.Want{Limit: 1000})
	require.NoError(t, err)
	return got
}

func TestTx_ASecondWriterOfAnAggregateWaits(t *testing.T) {
	for name, end := range map[string]func(*memory.Tx) error{"commit": (*memory.Tx).Commit, "rollback": (*memory.Tx).Rollback} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, memory.Config{})
				first, second := s.Begin(), s.Begin()
				require.NoError(t, s.Publisher(first).Publish("t", msg("x", "1")))
				require.NoError(t, s.Publisher(second).Publish("t", msg("y", "1")), "another aggregate does not wait")
				require.NoError(t, s.Publisher(second).Publish("u", msg("x", "1")), "nor another topic")
				done := make(chan error, 1)
				go func() { done <- s.Publisher(second).Publish("t", msg("x", "2")) }()
				synctest.Wait()
				require.Empty(t, done, "the second did not wait")
				require.NoError(t, end(first))
				require.NoError(t, <-done)
				require.NoError(t, second.Commit())
				last := readAll(t, s)
				want := map[string]int64{"commit": 2, "rollback": 1}[name]
				for _, r := range last {
					if string(r.Payload) == "2" {
						require.Equal(t, want, r.Sequence)
					}
				}
			})
		})
	}
}

func TestTx_AWaitHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memory.Config{})
		first, second := s.Begin(), s.Begin()
		require.NoError(t, s.Publisher(first).Publish("t", msg("x", "1")))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m := msg("x", "2")
		m.SetContext(ctx)
		begin := time.Now()
		require.ErrorIs(t, s.Publisher(second).Publish("t", m), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begin), "the message's own limit")

		begin = time.Now()
		require.ErrorContains(t, s.Publisher(second).Publish("t", msg("x", "2")), "too long")
		require.Equal(t, 10*time.Second, time.Since(begin))

		require.NoError(t, first.Commit())
		require.NoError(t, s.Publisher(second).Publish("t", msg("x", "2")), "the transaction stays usable")
		require.NoError(t, second.Commit())
		require.Len(t, readAll(t, s), 2)
	})
}

// Both take two aggregates, named in opposite order: neither waits for ever.
func TestTx_CallsTakeAggregatesInOneOrder(t *testing.T) {
	s := open(t, memory.Config{})
	done := make(chan error, 2)
	for _, names := range [][2]string{{"x", "y"}, {"y", "x"}} {
		go func() {
			for range 200 {
				tx := s.Begin()
				if err := s.Publisher(tx).Publish("t", msg(names[0], ""), msg(names[1], "")); err != nil {
					done <- err
					return
				}
				if err := tx.Commit(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Len(t, readAll(t, s), 800)
}

func TestTx_IsDoneOnce(t *testing.T) {
	s := open(t, memory.Config{})
	tx := s.Begin()
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, tx.Commit(), backends.ErrTransactionDone)
	require.ErrorIs(t, tx.Rollback(), backends.ErrTransactionDone)
	require.NoError(t, s.Publisher(tx).Publish("t"), "no messages, no work")
}

func TestPublish_KeepsNothingOfTheCallers(t *testing.T) {
	s := open(t, memory.Config{})
	m := msg("x", "before")
	m.Metadata.Set("k", "before")
	publish(t, s, "t", m)
	copy(m.Payload, "after!")
	m.Metadata.Set("k", "after!")
	got := readAll(t, s)
	require.Equal(t, "before", string(got[0].Payload))
	require.Equal(t, "before", got[0].Metadata.Get("k"))
	got[0].Payload[0] = 'X'
	got[0].Metadata.Set("k", "X")
	require.Equal(t, "before", string(readAll(t, s)[0].Payload), "a reader wrote into the store")
	require.Equal(t, "before", readAll(t, s)[0].Metadata.Get("k"))
}

func TestContextPublisher_TakesTheTransactionOfTheMessage(t *testing.T) {
	s, other := open(t, memory.Config{}), open(t, memory.Config{})
	p := s.ContextPublisher()
	require.NoError(t, p.Publish("t"), "no messages, no work")
	require.ErrorIs(t, p.Publish("t", msg("x", "1")), backends.ErrNoTransaction)
	var fault *backends.MessageError
	require.ErrorAs(t, p.Publish("t", nil, msg("x", "1")), &fault)

	foreign := msg("x", "1")
	foreign.SetContext(memory.WithTx(t.Context(), other.Begin()))
	require.ErrorIs(t, p.Publish("t", foreign), backends.ErrNoTransaction)

	tx := s.Begin()
	m := msg("x", "1")
	m.SetContext(memory.WithTx(t.Context(), tx))
	got, ok := memory.TxFromContext(m.Context())
	require.True(t, ok)
	require.Same(t, tx, got)
	require.NoError(t, p.Publish("t", m))
	require.NoError(t, p.Close())
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, p.Publish("t", m), backends.ErrTransactionDone)
	require.Len(t, readAll(t, s), 1)

	_, ok = memory.TxFromContext(t.Context())
	require.False(t, ok)
	_, ok = memory.TxFromContext(memory.WithTx(t.Context(), nil))
	require.False(t, ok)
}
