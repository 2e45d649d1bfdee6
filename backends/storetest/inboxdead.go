package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var inboxDeadCases = []testCase{
	inboxCase("9: attempts are counted durably, and the last one parks", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(3), nth(4))
		require.Equal(b, backends.InboxFailed{Attempts: 1}, b.fail(nth(2), inSequence, 3))
		require.Equal(b, backends.InboxFailed{Attempts: 2}, b.instance().fail(nth(2), inSequence, 3))
		require.Equal(b, backends.InboxFailed{Attempts: 3, GivenUp: true}, b.fail(nth(2), inSequence, 3))
		b.buried("m2", "m3", "m4")
		l := b.letters()[0]
		require.Equal(b, 3, l.Attempts)
		require.Equal(b, backends.ReasonAttempts, l.Reason)
		require.Equal(b, errPlanted.Error(), l.LastError)
		want := nth(2)
		want.Age = l.Age
		require.Equal(b, *want, l.Delivery)
		require.Empty(b, b.next(keyX))
		require.Equal(b, backends.InboxBacklog{Parked: 1, Dead: 3}, b.backlog())
	}),
	inboxCase("9: who failed last does not park what another has handled", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		require.Equal(b, 1, b.fail(nth(2), inSequence, 2).Attempts)
		b.instance().sees(backends.Fresh, inSequence, nth(2))
		require.Equal(b, backends.InboxFailed{Overtaken: true}, b.fail(nth(2), inSequence, 2))
		b.sees(backends.Fresh, anyOrder, loose("a"))
		require.Equal(b, backends.InboxFailed{Overtaken: true}, b.fail(loose("a"), anyOrder, 1))
		b.sees(backends.Fresh, inSequence, nth(3))
		require.Empty(b, b.letters())
	}),
	inboxCase("9: a failure is not counted under who is at work", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		g := b.begin(nth(2), inSequence)
		done := make(chan backends.InboxFailed, 1)
		go func() {
			got, err := b.instance().Fail(b.Context(), nth(2), inSequence, backends.InboxFailure{Err: errPlanted, Limit: 1, Reason: "r"})
			if err == nil {
				done <- got
			}
			close(done)
		}()
		select {
		case <-done:
			require.Fail(b, "it did not wait for the lock")
		case <-time.After(atOnce):
		}
		b.end(g)
		require.Equal(b, backends.InboxFailed{Overtaken: true}, <-done)
	}),
	inboxCase("10: successors of a parked head line up, and are requeued in order", func(b *box) {
		b.park()
		b.sees(backends.Parked, inSequence, nth(5), nth(4))
		b.sees(backends.Duplicate, inSequence, nth(1), nth(5), nth(2), nth(3))
		p, err := b.dead.Parked(b.Context(), backends.InboxKey{}, 10)
		require.NoError(b, err)
		require.Len(b, p, 1)
		require.Equal(b, keyX, p[0].InboxKey)
		require.Equal(b, backends.ReasonAttempts, p[0].Reason)
		require.EqualValues(b, 1, p[0].Last)
		require.EqualValues(b, 4, p[0].Letters)
		require.WithinDuration(b, time.Now(), p[0].ParkedAt, time.Minute)

		n, err := b.dead.Requeue(b.Context(), backends.InboxTarget{Key: keyX})
		require.NoError(b, err)
		require.Equal(b, 4, n)
		b.sees(backends.Ahead, inSequence, nth(6)) // 11: live ones meanwhile
		require.Equal(b, 1, b.fail(nth(2), inSequence, 3).Attempts, "failures were forgotten")
		b.drains(keyX, "m2", "m3", "m4", "m5", "m6")
		b.sees(backends.Fresh, inSequence, nth(7))
		b.effects("m1", "m2", "m3", "m4", "m5", "m6", "m7")
		require.Empty(b, b.letters())
		_, err = b.dead.Requeue(b.Context(), backends.InboxTarget{Key: keyX})
		require.ErrorIs(b, err, backends.ErrNotFound)
	}),
	inboxCase("11: a requeue waits for who is parking", func(b *box) {
		b.park()
		g := b.begin(nth(4), inSequence)
		require.Equal(b, backends.Parked, g.s.Place)
		require.NoError(b, g.tx.SetAside(b.Context(), g.s.Reason))
		done := make(chan int, 1)
		go func() {
			n, _ := b.instance().dead.Requeue(b.Context(), backends.InboxTarget{Key: keyX})
			done <- n
		}()
		select {
		case <-done:
			require.Fail(b, "it did not wait for the lock")
		case <-time.After(atOnce):
		}
		b.end(g)
		require.Equal(b, 3, <-done)
		b.drains(keyX, "m2", "m3", "m4")
	}),
	inboxCase("discarding the head lets the rest go on", func(b *box) {
		b.park()
		head, second := b.letters()[0], b.letters()[1]
		_, err := b.dead.Discard(b.Context(), backends.InboxTarget{ID: second.ID})
		require.ErrorIs(b, err, backends.ErrParked)
		_, err = b.dead.Requeue(b.Context(), backends.InboxTarget{ID: second.ID})
		require.ErrorIs(b, err, backends.ErrParked)
		n, err := b.dead.Discard(b.Context(), backends.InboxTarget{ID: head.ID})
		require.NoError(b, err)
		require.Equal(b, 1, n)
		b.drains(keyX, "m3")
		b.refuses(backends.ReasonLate, nth(2))
		b.sees(backends.Duplicate, inSequence, nth(2))
		b.effects("m1", "m3")
	}),
	inboxCase("discarding all goes on after them", func(b *box) {
		b.park()
		n, err := b.dead.Discard(b.Context(), backends.InboxTarget{Key: keyX})
		require.NoError(b, err)
		require.Equal(b, 2, n)
		require.Empty(b, b.letters())
		require.Empty(b, b.next(keyX))
		b.sees(backends.Fresh, inSequence, nth(4))
		b.effects("m1", "m4")
	}),
	inboxCase("a message without order is given up alone, and comes back alone", func(b *box) {
		require.Equal(b, 1, b.fail(loose("a"), anyOrder, 2).Attempts)
		require.True(b, b.fail(loose("a"), anyOrder, 2).GivenUp)
		b.sees(backends.Duplicate, anyOrder, loose("a"))
		b.sees(backends.Fresh, anyOrder, loose("b"))
		b.buried("a")
		target := backends.InboxTarget{ID: b.letters()[0].ID}
		n, err := b.dead.Requeue(b.Context(), target)
		require.NoError(b, err)
		require.Equal(b, 1, n)
		_, err = b.dead.Requeue(b.Context(), target)
		require.ErrorIs(b, err, backends.ErrNotFound)
		w, err := b.upkeep.Waiting(b.Context(), backends.InboxKey{}, 10)
		require.NoError(b, err)
		require.Len(b, w, 1)
		b.drains(w[0].InboxKey, "a")
		b.sees(backends.Duplicate, anyOrder, loose("a"))
		b.effects("b", "a")
	}),
	inboxCase("newer: who is given up holds nobody back", func(b *box) {
		b.sees(backends.Fresh, newer, nth(1))
		require.True(b, b.fail(nth(2), newer, 1).GivenUp)
		b.buried("m2")
		b.sees(backends.Duplicate, newer, nth(2))
		b.sees(backends.Fresh, newer, nth(3))
	}),
	inboxCase("8: an aggregate whose start did not come is adopted after the gap time", func(b *box) {
		b.sees(backends.Ahead, inSequence, nth(6), nth(5))
		w, err := b.upkeep.Waiting(b.Context(), backends.InboxKey{}, 10)
		require.NoError(b, err)
		require.Len(b, w, 1)
		require.True(b, w[0].First)
		require.EqualValues(b, 5, w[0].Lowest)
		require.Equal(b, 2, w[0].Buffered)
		b.resolve(backends.GapAdopt, time.Hour, false)
		require.Empty(b, b.next(keyX), "adopted at once")
		b.resolve(backends.GapAdopt, 0, true)
		b.drains(keyX, "m5", "m6")
		b.refuses(backends.ReasonBefore, nth(4))
		old := nth(3)
		old.Age = 2 * time.Hour
		b.sees(backends.Duplicate, inSequence, old)
		b.effects("m5", "m6")
	}),
	inboxCase("12: a gap is not ended under who is at work, or who failed just now", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(3))
		b.resolve(backends.GapSkip, time.Hour, false)
		g := b.begin(nth(2), inSequence)
		b.notResolvedBeside(g)
		b.fail(nth(2), inSequence, 5)
		b.pause(2 * time.Millisecond)
		b.resolve(backends.GapSkip, time.Millisecond, true)
		b.drains(keyX, "m3")
		b.refuses(backends.ReasonLate, nth(2))
	}),
	inboxCase("12: who fails is not missing", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(3))
		b.pause(300 * time.Millisecond)
		b.fail(nth(2), inSequence, 5)
		b.resolve(backends.GapSkip, 250*time.Millisecond, false)
		b.sees(backends.Fresh, inSequence, nth(2))
		b.resolve(backends.GapSkip, 0, false)
	}),
	inboxCase("a gap can set the aggregate aside", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(3), nth(4))
		b.resolve(backends.GapPark, 0, true)
		b.buried("m3", "m4")
		b.sees(backends.Parked, inSequence, nth(2))
		_, err := b.dead.Requeue(b.Context(), backends.InboxTarget{Key: keyX})
		require.NoError(b, err)
		b.drains(keyX, "m2", "m3", "m4")
	}),
	inboxCase("a sequence used twice is noticed", func(b *box) {
		thief := func(n int64, id string) *backends.Delivery {
			d := nth(n)
			d.MessageID = id
			return d
		}
		b.sees(backends.Fresh, inSequence, nth(1), nth(2))
		b.refuses(backends.ReasonReused, thief(1, "thief"))
		b.sees(backends.Duplicate, inSequence, thief(1, "thief"))
		b.sees(backends.Ahead, inSequence, nth(4))
		b.refuses(backends.ReasonReused, thief(4, "thief2"))
		old := thief(1, "thief3")
		old.Age = 2 * time.Hour
		b.sees(backends.Duplicate, inSequence, old)
		old.Age = 0
		b.sees(backends.Duplicate, inSequence, old)
		b.sees(backends.Fresh, inSequence, nth(3))
		b.drains(keyX, "m4")
		b.buried("thief", "thief2")
	}),
	inboxCase("what a handler committed by itself is taken back", func(b *box) {
		for _, d := range []*backends.Delivery{nth(1), loose("a")} {
			order := inSequence
			if d.Sequence == 0 {
				order = anyOrder
			}
			b.sees(backends.Fresh, order, d)
			got, err := b.Fail(b.Context(), d, order, backends.InboxFailure{Err: errPlanted, Limit: 3, Reason: "r", Undo: true})
			require.NoError(b, err)
			require.Equal(b, backends.InboxFailed{Attempts: 1}, got)
			b.sees(backends.Fresh, order, d)
		}
	}),
}

// park leaves aggregate x with 1 handled, and 2 and 3 as dead letters.
func (b *box) park() {
	b.Helper()
	b.sees(backends.Fresh, inSequence, nth(1))
	b.sees(backends.Ahead, inSequence, nth(3))
	require.True(b, b.fail(nth(2), inSequence, 1).GivenUp)
	b.buried("m2", "m3")
}

// notResolvedBeside says that a gap stays one while a transaction holds the row,
// and drops that.
func (b *box) notResolvedBeside(g begun) {
	b.Helper()
	done := make(chan bool, 1)
	go func() {
		ok, _ := b.instance().upkeep.Resolve(b.Context(), keyX, backends.GapSkip, time.Hour)
		done <- ok
	}()
	select {
	case ok := <-done:
		require.False(b, ok, "a gap was ended under who handles its first message")
		b.drop(g)
	case <-time.After(atOnce): // one writer at a time
		b.drop(g)
		require.False(b, <-done)
	}
}
