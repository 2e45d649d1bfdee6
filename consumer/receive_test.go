package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/consumer"
)

func TestReceive_OnceAndInOrder(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{}, nil)
		i.gives(consumer.Processed, order("a", 1))
		i.gives(consumer.Duplicate, order("a", 1))
		i.gives(consumer.Buffered, order("a", 4))
		i.gives(consumer.Buffered, order("a", 3))
		i.gives(consumer.Duplicate, order("a", 3))
		e := i.gives(consumer.Processed, order("a", 2)) // and what waits behind it
		require.EqualValues(t, 2, e.Received)
		i.gives(consumer.Duplicate, order("a", 4))
		plain := message.NewMessage("plain", nil)
		i.gives(consumer.Processed, plain)
		i.gives(consumer.Duplicate, plain)
		require.Equal(t, []string{"a/1", "a/2", "a/3", "a/4", "plain"}, w.effects())
	})
}

func TestReceive_OffTakesNoNoticeOfSequences(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{Sequence: consumer.Off}, nil)
		i.gives(consumer.Processed, order("a", 7))
		i.gives(consumer.Processed, order("a", 2))
		i.gives(consumer.Duplicate, order("a", 7))
		require.Equal(t, []string{"a/7", "a/2"}, w.effects())
	})
}

func TestReceive_LatestDropsWhatIsOlder(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{Sequence: consumer.Latest}, nil)
		i.gives(consumer.Processed, order("a", 7))
		i.gives(consumer.Stale, order("a", 2))
		i.gives(consumer.Duplicate, order("a", 7))
		i.gives(consumer.Processed, order("a", 9))
		require.Equal(t, []string{"a/7", "a/9"}, w.effects())
	})
}

// An error, a panic, a deadline: nothing of it stays, and it counts.
func TestReceive_AFailureStoresNothingButItsCount(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		how := []func(msg *message.Message) error{
			func(*message.Message) error { return errors.New("no stock") },
			func(*message.Message) error { panic("boom") },
			func(msg *message.Message) error { <-msg.Context().Done(); return msg.Context().Err() },
			func(*message.Message) error { return nil },
		}
		n := 0
		i := w.instance(consumer.Config{HandlerTimeout: 300 * time.Millisecond}, func(msg *message.Message) ([]*message.Message, error) {
			n++
			return nil, how[n-1](msg)
		})
		for attempt := 1; attempt <= 3; attempt++ {
			e := i.gives(consumer.Failed, order("a", 1))
			require.Equal(t, attempt, e.Attempts)
			require.Empty(t, w.effects())
		}
		i.gives(consumer.Processed, order("a", 1))
		require.Equal(t, []string{"a/1"}, w.effects())
	})
}

func TestReceive_WhatIsNobodysFaultDoesNotCount(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		how := []error{context.Canceled, backends.Unavailable(errors.New("the breaker is open"))}
		n := 0
		i := w.instance(consumer.Config{MaxAttempts: 1}, func(*message.Message) ([]*message.Message, error) {
			if n++; n <= len(how) {
				return nil, how[n-1]
			}
			return nil, nil
		})
		for range how {
			require.Zero(t, i.gives(consumer.Failed, order("a", 1)).Attempts)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m := order("a", 1)
		m.SetContext(ctx)
		require.Zero(t, i.gives(consumer.Failed, m).Attempts)
		i.gives(consumer.Processed, order("a", 1))
		require.Equal(t, []string{"a/1"}, w.effects())
	})
}

func TestReceive_APoisonedMessageParksItsAggregateOnly(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		cured := false
		i := w.instance(consumer.Config{MaxAttempts: 2, SweepInterval: 10 * time.Millisecond}, func(msg *message.Message) ([]*message.Message, error) {
			if label(msg) == "a/2" && !cured {
				return nil, errors.New("cannot be read")
			}
			return nil, nil
		})
		i.gives(consumer.Processed, order("a", 1))
		i.gives(consumer.Failed, order("a", 2))
		i.gives(consumer.DeadLettered, order("a", 2))
		require.Equal(t, backends.ReasonParked, i.gives(consumer.DeadLettered, order("a", 3)).Reason)
		i.gives(consumer.Processed, order("b", 1))
		i.gives(consumer.Duplicate, order("a", 2))
		parked, err := i.dead().Parked(t.Context(), backends.InboxKey{}, 10)
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.EqualValues(t, 2, parked[0].Letters)
		require.Contains(t, i.log.String(), "dead letter")

		cured = true
		n, err := i.dead().Requeue(t.Context(), backends.InboxTarget{Key: parked[0].InboxKey})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		i.run()
		w.eventually("a/1", "b/1", "a/2", "a/3")
		i.gives(consumer.Processed, order("a", 4))
	})
}

func TestReceive_PermanentIsGivenUpAtOnce(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		i := w.instance(consumer.Config{}, func(*message.Message) ([]*message.Message, error) {
			return nil, backends.Permanent(errors.New("unknown version"))
		})
		require.Equal(t, backends.ReasonPermanent, i.gives(consumer.DeadLettered, order("a", 1)).Reason)
		require.Equal(t, backends.ReasonPermanent, i.gives(consumer.DeadLettered, message.NewMessage("plain", nil)).Reason)
		require.Equal(t, backends.ReasonNoID, i.gives(consumer.DeadLettered, message.NewMessage("", nil)).Reason)
		require.Empty(t, w.effects())
	})
}

// A handler that ends the transaction itself: nothing is acked, and nothing lost.
func TestReceive_AHandlerThatEndsTheTransaction(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, commit := range []bool{true, false} {
			w.endedBy(t, commit)
		}
	})
}

func (w *world) endedBy(t *testing.T, commit bool) {
	n := 0
	name := map[bool]string{true: "commits", false: "rolls-back"}[commit]
	i := w.instance(consumer.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		if n++; n > 2 {
			return nil, nil
		}
		if err := w.end(msg.Context(), commit); err != nil {
			require.ErrorIs(t, err, backends.ErrInboxTransaction)
			return nil, err
		}
		return nil, nil // it does not even notice
	})
	for attempt := 1; attempt <= 2; attempt++ {
		e := i.gives(consumer.Failed, order(name, 1))
		require.Equal(t, attempt, e.Attempts)
		require.ErrorContains(t, e.Err, "inbox")
	}
	i.gives(consumer.Processed, order(name, 1))
	i.gives(consumer.Duplicate, order(name, 1))
}

func TestReceive_ASwallowedErrorIsAFailure(t *testing.T) {
	w := pgxWorld(t)
	i := w.instance(consumer.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		_ = w.apply(msg.Context(), &message.Message{UUID: "bad\x00"}) // breaks the transaction
		return nil, nil
	})
	e := i.gives(consumer.Failed, order("a", 1))
	require.Equal(t, 1, e.Attempts)
	require.ErrorIs(t, e.Err, backends.ErrTransactionDone)
	require.Empty(t, w.effects())
}

// SQLite rolls a transaction back when a statement of it is interrupted.
func TestReceive_AnInterruptedStatementThatWasSwallowed(t *testing.T) {
	w := sqliteWorld(t)
	publish, times := true, 0
	i := w.instance(consumer.Config{PublishTopic: "replies"}, func(msg *message.Message) ([]*message.Message, error) {
		if times++; times > 2 {
			return nil, nil
		}
		tx, _ := sqlite.TxFromContext(msg.Context())
		ctx, cancel := context.WithTimeout(msg.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := tx.ExecContext(ctx, `insert into effects (label) with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000000) select x from c`)
		require.Error(t, err)
		if publish {
			return []*message.Message{event("z", "1")}, nil
		}
		return nil, nil
	})
	require.ErrorIs(t, i.gives(consumer.Failed, order("a", 1)).Err, backends.ErrTransactionDone)
	publish = false
	require.ErrorIs(t, i.gives(consumer.Failed, order("a", 1)).Err, backends.ErrTransactionDone)
	require.Empty(t, w.effects())
	require.Empty(t, w.outbox())
	i.gives(consumer.Processed, order("a", 1))
}

func TestWrap_OneHandlerForEachConsumer(t *testing.T) {
	w := memoryWorld(t)
	i := w.instance(consumer.Config{}, nil)
	second := i.Wrap(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	_, err := second(order("a", 1))
	require.ErrorIs(t, err, consumer.ErrTwoHandlers)
	require.Contains(t, i.log.String(), "two handlers")
}

func TestReceive_AnAckByTheHandlerDoesNotReachTheBroker(t *testing.T) {
	w := memoryWorld(t)
	i := w.instance(consumer.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return nil, errors.New("and then it fails")
	})
	m := order("a", 1)
	i.gives(consumer.Failed, m)
	select {
	case <-m.Acked():
		require.Fail(t, "acked before the commit")
	default:
	}
}
