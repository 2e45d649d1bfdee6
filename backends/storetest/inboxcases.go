package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

const (
	anyOrder   = backends.AnyOrder
	inSequence = backends.InSequence
	newer      = backends.Newer
)

var inboxCases = []testCase{
	inboxCase("once by id, in each inbox and topic", func(b *box) {
		other := loose("1")
		other.Topic = "u"
		b.sees(backends.Fresh, anyOrder, loose("1"), loose("2"), other)
		b.sees(backends.Duplicate, anyOrder, loose("1"), loose("2"), other)
		second := b.inbox(backends.InboxConfig{Name: "shipping", Retention: time.Hour, LockTimeout: limit})
		second.sees(backends.Fresh, anyOrder, loose("1"))
		b.effects("1", "2", "1", "1")
	}),
	inboxCase("a rollback leaves nothing behind", func(b *box) {
		for _, order := range []backends.InboxOrder{anyOrder, inSequence, newer} {
			d := nth(1)
			d.Aggregate += string(rune('0' + order))
			d.MessageID += string(rune('0' + order))
			g := b.begin(d, order)
			require.Equal(b, backends.Fresh, g.s.Place)
			b.effect(g)
			b.drop(g)
			b.effects()
			b.sees(backends.Fresh, order, d)
			b.effects(d.MessageID)
			b.sees(backends.Duplicate, order, d)
		}
	}),
	inboxCase("nothing is marked before the commit", func(b *box) {
		g := b.begin(loose("1"), anyOrder)
		later := b.instance().beginLater(loose("1"), anyOrder)
		b.waits(later)
		b.drop(g)
		got := b.wait(later)
		require.Equal(b, backends.Fresh, got.s.Place)
		b.drop(got)
	}),
	inboxCase("1: two copies at once, one is handled", func(b *box) {
		for i, order := range []backends.InboxOrder{anyOrder, inSequence} {
			d := nth(int64(1 + i))
			d.Aggregate, d.Sequence = d.MessageID, 1
			g := b.begin(d, order)
			b.effect(g)
			later := b.instance().beginLater(d, order)
			b.waits(later)
			b.end(g)
			got := b.wait(later)
			require.Equal(b, backends.Duplicate, got.s.Place)
			b.drop(got)
		}
		b.effects("m1", "m2")
	}),
	inboxCase("1: neighbours at once wait for each other", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		g := b.begin(nth(2), inSequence)
		later := b.instance().beginLater(nth(3), inSequence)
		b.waits(later)
		b.end(g)
		got := b.wait(later)
		require.Equal(b, backends.Fresh, got.s.Place, "its predecessor had been committed")
		later = b.instance().beginLater(nth(4), inSequence)
		b.waits(later)
		b.drop(got)
		got = b.wait(later)
		require.Equal(b, backends.Ahead, got.s.Place, "its predecessor had been rolled back")
		require.EqualValues(b, 3, got.s.Expected)
		b.drop(got)
	}),
	inboxCase("1: the first two of an aggregate at once", func(b *box) {
		g := b.begin(nth(1), inSequence)
		later := b.instance().beginLater(nth(2), inSequence)
		b.waits(later)
		b.end(g)
		got := b.wait(later)
		require.Equal(b, backends.Fresh, got.s.Place)
		b.end(got)

		d := nth(1)
		d.Aggregate, d.MessageID = "y", "y1"
		g = b.begin(d, inSequence)
		later = b.instance().beginLater(d, inSequence)
		b.waits(later)
		b.drop(g)
		got = b.wait(later)
		require.Equal(b, backends.Fresh, got.s.Place, "who saw it first has taken it back")
		b.drop(got)
	}),
	inboxCase("one that comes early waits in the buffer", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(4), nth(3))
		b.sees(backends.Duplicate, inSequence, nth(3), nth(4))
		require.Empty(b, b.next(keyX), "2 has not come")
		require.EqualValues(b, 2, b.backlog().Buffered)
		s := b.handle(nth(2), inSequence)
		require.Equal(b, backends.Fresh, s.Place)
		require.Equal(b, 2, s.Buffered)
		b.drains(keyX, "m3", "m4")
		b.effects("m1", "m2", "m3", "m4")
		b.sees(backends.Duplicate, inSequence, nth(1), nth(2), nth(3), nth(4))
		require.Zero(b, b.backlog().Buffered)
	}),
	inboxCase("what was buffered is whole", func(b *box) {
		b.sees(backends.Ahead, inSequence, nth(2))
		b.sees(backends.Fresh, inSequence, nth(1))
		tx, d, _, err := b.Next(b.Context(), keyX, true)
		require.NoError(b, err)
		want := nth(2)
		want.Age = d.Age
		require.Equal(b, want, d)
		require.NoError(b, tx.Rollback(b.Context()))
	}),
	inboxCase("3: a copy in the buffer goes when it is handled live", func(b *box) {
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Ahead, inSequence, nth(3))
		b.sees(backends.Fresh, inSequence, nth(2), nth(3))
		require.Zero(b, b.backlog().Buffered, "a copy was left")
		require.Empty(b, b.next(keyX))
		b.sees(backends.Fresh, inSequence, nth(4))
		b.effects("m1", "m2", "m3", "m4")
	}),
	inboxCase("2: who waits for the lock sees what came meanwhile", lockThenLook),
	inboxCase("4: two do not release one message", func(b *box) {
		b.sees(backends.Ahead, inSequence, nth(2))
		b.sees(backends.Fresh, inSequence, nth(1))
		tx, d, _, err := b.Next(b.Context(), keyX, true)
		require.NoError(b, err)
		require.Equal(b, "m2", d.MessageID)
		g := begun{tx, backends.Standing{}, d}
		b.effect(g)
		later := b.instance().nextLater(keyX, false)
		select {
		case id := <-later: // skipped the lock
			require.Empty(b, id, "released twice")
			b.end(g)
		case <-time.After(atOnce): // one writer at a time
			b.end(g)
			require.Empty(b, <-later, "released twice")
		}
		require.Empty(b, b.next(keyX))
		b.effects("m1", "m2")
	}),
	inboxCase("5: a failure does not lose what is buffered", func(b *box) {
		b.sees(backends.Ahead, inSequence, nth(2))
		b.sees(backends.Fresh, inSequence, nth(1))
		tx, d, _, err := b.Next(b.Context(), keyX, true)
		require.NoError(b, err)
		require.NoError(b, tx.Rollback(b.Context()))
		require.Equal(b, 1, b.fail(d, inSequence, 3).Attempts)
		w, err := b.upkeep.Waiting(b.Context(), backends.InboxKey{}, 10)
		require.NoError(b, err)
		require.Len(b, w, 1)
		require.EqualValues(b, 1, w[0].Last)
		require.EqualValues(b, 2, w[0].Lowest)
		b.drains(keyX, "m2")
		b.effects("m1", "m2")
	}),
	inboxCase("newer: older ones are stale", func(b *box) {
		b.sees(backends.Fresh, newer, nth(5))
		b.sees(backends.Duplicate, newer, nth(5))
		b.sees(backends.Stale, newer, nth(3))
		b.sees(backends.Fresh, newer, nth(6), nth(9))
		b.sees(backends.Stale, newer, nth(7), nth(3))
		b.effects("m5", "m6", "m9")
	}),
	inboxCase("a message without an id is refused", func(b *box) {
		d := loose("")
		b.refuses(backends.ReasonNoID, d)
		d = nth(1)
		d.MessageID = ""
		b.refuses(backends.ReasonNoID, d)
		require.Len(b, b.letters(), 2)
		b.sees(backends.Fresh, inSequence, nth(1))
	}),
	inboxCase("a known id in a new place moves the sequence on", func(b *box) {
		again := nth(2)
		again.MessageID = "m1"
		b.sees(backends.Fresh, inSequence, nth(1))
		b.sees(backends.Moved, inSequence, again)
		b.sees(backends.Fresh, inSequence, nth(3))
		b.effects("m1", "m3")
	}),
	inboxCase("ids are purged in steps, sequences stay", func(b *box) {
		short := b.inbox(backends.InboxConfig{Name: "billing", Retention: time.Millisecond, LockTimeout: limit})
		short.sees(backends.Fresh, inSequence, nth(1), nth(2))
		short.sees(backends.Fresh, anyOrder, loose("a"), loose("b"))
		n, err := b.upkeep.Purge(b.Context(), 10)
		require.NoError(b, err)
		require.Zero(b, n, "within the retention")
		total := 0
		for end := time.Now().Add(limit); total < 4 && time.Now().Before(end); b.pause(time.Millisecond) {
			n, err := short.upkeep.Purge(b.Context(), 3)
			require.NoError(b, err)
			require.LessOrEqual(b, n, 3)
			total += n
		}
		require.Equal(b, 4, total)
		short.sees(backends.Duplicate, inSequence, nth(1), nth(2))
		short.sees(backends.Fresh, anyOrder, loose("a"))
	}),
	inboxCase("without marks the sequence tells", func(b *box) {
		cfg := inboxDefaults
		cfg.NoMarks = true
		bare := b.inbox(cfg)
		bare.sees(backends.Fresh, inSequence, nth(1), nth(2))
		bare.sees(backends.Ahead, inSequence, nth(4))
		bare.sees(backends.Duplicate, inSequence, nth(1), nth(2), nth(4))
		bare.sees(backends.Fresh, inSequence, nth(3))
		bare.drains(keyX, "m4")
		b.effects("m1", "m2", "m3", "m4")
	}),
}

// nextLater takes what is next in the background and commits it.
func (b *box) nextLater(key backends.InboxKey, wait bool) <-chan string {
	out := make(chan string, 1)
	go func() {
		defer close(out)
		tx, d, _, err := b.Next(b.Context(), key, wait)
		if err != nil || tx == nil {
			return
		}
		if tx.Commit(b.Context()) == nil {
			out <- d.MessageID
		}
	}()
	return out
}

func lockThenLook(b *box) {
	b.sees(backends.Fresh, inSequence, nth(1))
	b.sees(backends.Ahead, inSequence, nth(3))
	// 1. One handles 2, of which 3 is the successor.
	g := b.begin(nth(2), inSequence)
	// 2. Another looks for what is next, and waits.
	later := b.instance().nextLater(keyX, true)
	select {
	case id, ok := <-later:
		require.Fail(b, "it did not wait for the lock", "got %q %v", id, ok)
	case <-time.After(atOnce):
	}
	// 3. 2 is committed: now 3 is next.
	b.end(g)
	require.Equal(b, "m3", <-later)
}
