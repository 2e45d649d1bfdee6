package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// atOnce is how long a case watches that something waits.
const atOnce = 150 * time.Millisecond

// inboxCase is a promise of an inbox. A store without inboxes is named in the output.
func inboxCase(name string, run func(b *box)) testCase {
	return testCase{name: "Inbox/" + name, run: func(f *fixture) {
		if _, ok := f.box.(backends.Inboxes); !ok {
			f.Logf("%T keeps no inboxes", f.box)
			return
		}
		b := f.inbox(inboxDefaults)
		require.NoError(f, b.Check(f.Context()))
		run(b)
	}}
}

var inboxDefaults = backends.InboxConfig{Name: "billing", Retention: time.Hour, LockTimeout: limit}

// box is an inbox in a case.
type box struct {
	*fixture
	backends.Inbox
	upkeep backends.InboxUpkeep
	dead   backends.InboxDeadLetters
}

func (f *fixture) inbox(cfg backends.InboxConfig) *box {
	f.Helper()
	in, err := f.box.(backends.Inboxes).Inbox(cfg)
	require.NoError(f, err)
	b := &box{fixture: f, Inbox: in}
	var ok bool
	b.upkeep, ok = in.(backends.InboxUpkeep)
	require.True(f, ok, "%T has no upkeep", in)
	b.dead, ok = in.(backends.InboxDeadLetters)
	require.True(f, ok, "%T has no dead letters", in)
	return b
}

// instance is the same inbox as another process has it.
func (b *box) instance() *box { return b.inbox(inboxDefaults) }

var keyX = backends.InboxKey{Topic: "t", Aggregate: "x"}

// nth is delivery n of aggregate x. Its id, payload and metadata name it.
func nth(n int64) *backends.Delivery {
	return &backends.Delivery{
		InboxKey: keyX, MessageID: fmt.Sprintf("m%d", n), Sequence: n, Payload: []byte{0, 0xff, byte(n)},
		Metadata: message.Metadata{"n": fmt.Sprint(n), backends.SequenceKey: fmt.Sprint(n)}, ReplyTopic: "reply", Age: time.Minute,
	}
}

// loose is a delivery without order.
func loose(id string) *backends.Delivery {
	return &backends.Delivery{InboxKey: backends.InboxKey{Topic: "t"}, MessageID: id, Payload: []byte(id), Metadata: message.Metadata{}, Age: time.Minute}
}

// begun is an open transaction, or how Begin failed.
type begun struct {
	tx backends.InboxTx
	s  backends.Standing
	d  *backends.Delivery
}

func (b *box) begin(d *backends.Delivery, order backends.InboxOrder) begun {
	b.Helper()
	tx, s, err := b.Begin(b.Context(), d, order)
	require.NoError(b, err)
	return begun{tx, s, d}
}

// beginLater begins in the background.
func (b *box) beginLater(d *backends.Delivery, order backends.InboxOrder) <-chan begun {
	out := make(chan begun, 1)
	go func() {
		tx, s, err := b.Begin(b.Context(), d, order)
		if err == nil {
			out <- begun{tx, s, d}
		}
		close(out)
	}()
	return out
}

// waits says that nothing comes for a while.
func (b *box) waits(c <-chan begun) {
	b.Helper()
	select {
	case got, ok := <-c:
		if ok {
			_ = got.tx.Rollback(context.WithoutCancel(b.Context())) // the case fails
		}
		require.Fail(b, "it did not wait for the transaction before it")
	case <-time.After(atOnce):
	}
}

func (b *box) wait(c <-chan begun) begun {
	b.Helper()
	select {
	case got, ok := <-c:
		require.True(b, ok, "it failed")
		return got
	case <-time.After(limit):
		require.Fail(b, "still waiting")
	}
	return begun{}
}

func (b *box) end(g begun) {
	b.Helper()
	require.NoError(b, g.tx.Commit(b.Context()))
}

func (b *box) drop(g begun) {
	b.Helper()
	require.NoError(b, g.tx.Rollback(b.Context()))
}

// effect does what a handler does: it publishes that it handled a delivery.
func (b *box) effect(g begun) {
	b.Helper()
	require.NoError(b, g.tx.Publish(b.Context(), "effects", msg("", g.d.MessageID)))
}

// handle receives a delivery as an engine does and says where it stood.
func (b *box) handle(d *backends.Delivery, order backends.InboxOrder) backends.Standing {
	b.Helper()
	g := b.begin(d, order)
	switch g.s.Place {
	case backends.Fresh:
		b.effect(g)
		b.end(g)
	case backends.Moved:
		b.end(g)
	case backends.Ahead:
		require.NoError(b, g.tx.SetAside(b.Context(), ""))
		b.end(g)
	case backends.Parked, backends.Refused:
		require.NoError(b, g.tx.SetAside(b.Context(), g.s.Reason))
		b.end(g)
	default:
		b.drop(g)
	}
	return g.s
}

// sees says where deliveries stand, one after the other.
func (b *box) sees(want backends.Place, order backends.InboxOrder, ds ...*backends.Delivery) {
	b.Helper()
	for _, d := range ds {
		require.Equal(b, want.String(), b.handle(d, order).Place.String(), "sequence %d", d.Sequence)
	}
}

// refuses says that a delivery is a dead letter for a reason.
func (b *box) refuses(reason string, d *backends.Delivery) {
	b.Helper()
	s := b.handle(d, backends.InSequence)
	require.Equal(b, reason, s.Reason)
}

// next handles what is next in the buffer; empty: nothing is.
func (b *box) next(key backends.InboxKey) string {
	b.Helper()
	tx, d, s, err := b.Next(b.Context(), key, true)
	require.NoError(b, err)
	if tx == nil {
		return ""
	}
	g := begun{tx, s, d}
	if s.Place == backends.Fresh {
		b.effect(g)
	}
	b.end(g)
	return d.MessageID
}

func (b *box) drains(key backends.InboxKey, want ...string) {
	b.Helper()
	for _, id := range want {
		require.Equal(b, id, b.next(key))
	}
	require.Empty(b, b.next(key), "nothing else waits")
}

// effects is what handlers did, in order, and takes it away.
func (b *box) effects(want ...string) {
	b.Helper()
	var got []string
	s := b.open("checker")
	for _, r := range s.drain(100) {
		got = append(got, string(r.Payload))
	}
	require.NoError(b, b.box.Release(b.Context(), s.lease))
	require.ElementsMatch(b, want, got)
}

func (b *box) backlog() backends.InboxBacklog {
	b.Helper()
	got, err := b.upkeep.Backlog(b.Context())
	require.NoError(b, err)
	return got
}

func (b *box) fail(d *backends.Delivery, order backends.InboxOrder, limit int) backends.InboxFailed {
	b.Helper()
	got, err := b.Fail(b.Context(), d, order, backends.InboxFailure{Err: errPlanted, Limit: limit, Reason: backends.ReasonAttempts})
	require.NoError(b, err)
	return got
}

var errPlanted = fmt.Errorf("planted failure")

func (b *box) resolve(how backends.GapAction, minAge time.Duration, want bool) {
	b.Helper()
	done, err := b.upkeep.Resolve(b.Context(), keyX, how, minAge)
	require.NoError(b, err)
	require.Equal(b, want, done)
}

// letters lists the dead letters by message id.
func (b *box) letters() []backends.InboxDead {
	b.Helper()
	got, err := b.dead.Dead(b.Context(), backends.InboxDeadFilter{})
	require.NoError(b, err)
	return got
}

func (b *box) buried(want ...string) {
	b.Helper()
	var got []string
	for _, l := range b.letters() {
		got = append(got, l.MessageID)
	}
	require.Equal(b, want, got)
}
