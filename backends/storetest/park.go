package storetest

import (
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var parkCases = []testCase{
	{"Park/the aggregate goes aside in order, others flow", withDead(func(f *fixture, d backends.DeadLetters) {
		s := parkedAtTwo(f)
		f.publish("t", msg("y", "1"), msg("x", "5"))
		require.Equal(f, []string{"1"}, payloads(s.drain(10)))
		dead, err := d.Dead(f.Context(), backends.DeadFilter{Aggregate: "x"})
		require.NoError(f, err)
		require.Len(f, dead, 4)
		for i, l := range dead {
			require.Equal(f, numbers(2, 5)[i], string(l.Payload))
			require.EqualValues(f, i+2, l.Sequence)
		}
		require.Equal(f, 1, dead[0].Attempts)
		require.Contains(f, dead[0].LastError, "planted failure")
		parked, err := d.Parked(f.Context(), "", 10)
		require.NoError(f, err)
		require.Len(f, parked, 1)
		require.Equal(f, "x", parked[0].Aggregate)
		require.EqualValues(f, 4, parked[0].Records)
		require.Contains(f, parked[0].Reason, "planted failure")
		b, err := f.box.Backlog(f.Context())
		require.NoError(f, err)
		require.EqualValues(f, 4, b.Dead)
		require.EqualValues(f, 1, b.Parked)
	})},
	{"Park/requeue puts all back before what came since", withDead(func(f *fixture, d backends.DeadLetters) {
		s := parkedAtTwo(f)
		require.Empty(f, s.drain(10))
		f.publish("t", msg("x", "5")) // not yet met
		n, err := d.Requeue(f.Context(), backends.DeadTarget{Aggregate: "x"})
		require.NoError(f, err)
		require.Equal(f, 3, n)
		got := s.drainTo(4)
		require.Equal(f, numbers(2, 5), payloads(got))
		require.Equal(f, []int64{2, 3, 4, 5}, sequences(got))
		require.Zero(f, got[0].Attempts)
		none, err := d.Parked(f.Context(), "", 10)
		require.NoError(f, err)
		require.Empty(f, none)
		f.publish("t", msg("x", "6"))
		require.Equal(f, []string{"6"}, payloads(s.drainTo(1)))
	})},
	{"Park/discarding the first lets the rest go on", withDead(func(f *fixture, d backends.DeadLetters) {
		s := parkedAtTwo(f)
		require.Empty(f, s.drain(10))
		dead, err := d.Dead(f.Context(), backends.DeadFilter{})
		require.NoError(f, err)
		_, err = d.Requeue(f.Context(), backends.DeadTarget{Record: &dead[1].Ref})
		require.ErrorIs(f, err, backends.ErrParked)
		n, err := d.Discard(f.Context(), backends.DeadTarget{Record: &dead[2].Ref}) // the last: nothing else moves
		require.NoError(f, err)
		require.Equal(f, 1, n)
		require.Empty(f, s.drain(10))
		n, err = d.Discard(f.Context(), backends.DeadTarget{Record: &dead[0].Ref})
		require.NoError(f, err)
		require.Equal(f, 1, n)
		require.Equal(f, []string{"3"}, payloads(s.drainTo(1)))
	})},
	{"Park/discarding all unparks", withDead(func(f *fixture, d backends.DeadLetters) {
		s := parkedAtTwo(f)
		require.Empty(f, s.drain(10))
		n, err := d.Discard(f.Context(), backends.DeadTarget{Aggregate: "x"})
		require.NoError(f, err)
		require.Equal(f, 3, n)
		f.publish("t", msg("x", "5"))
		require.Equal(f, []string{"5"}, payloads(s.drainTo(1)))
	})},
	{"Park/a record without an aggregate goes alone and comes back alone", withDead(func(f *fixture, d backends.DeadLetters) {
		f.publish("t", repeat("", 3)...)
		s := f.open("a")
		got := s.read(10)
		s.settle(outcome(&got[0], backends.Park))
		require.Len(f, s.drain(10), 2)
		n, err := d.Requeue(f.Context(), backends.DeadTarget{Record: &got[0].Ref})
		require.NoError(f, err)
		require.Equal(f, 1, n)
		require.Equal(f, got[0].MessageID, s.drainTo(1)[0].MessageID)
	})},
	{"Park/skip sets one aside", withDead(func(f *fixture, d backends.DeadLetters) {
		f.publish("t", repeat("x", 4)...)
		s := f.open("a")
		got := s.read(10)
		s.settle(outcome(&got[0], backends.Delivered), outcome(&got[1], backends.Skip))
		require.Equal(f, numbers(3, 4), payloads(s.drain(10)))
		dead, err := d.Dead(f.Context(), backends.DeadFilter{Topic: "t"})
		require.NoError(f, err)
		require.Len(f, dead, 1)
		require.Equal(f, "2", string(dead[0].Payload))
	})},
	{"Park/what is not there is said", withDead(func(f *fixture, d backends.DeadLetters) {
		for _, call := range []func(backends.DeadTarget) (int, error){
			func(t backends.DeadTarget) (int, error) { return d.Requeue(f.Context(), t) },
			func(t backends.DeadTarget) (int, error) { return d.Discard(f.Context(), t) },
		} {
			_, err := call(backends.DeadTarget{Aggregate: "nobody"})
			require.ErrorIs(f, err, backends.ErrNotFound)
			_, err = call(backends.DeadTarget{Record: &backends.Ref{Shard: 1, ID: 99}})
			require.ErrorIs(f, err, backends.ErrNotFound)
			_, err = call(backends.DeadTarget{})
			require.Error(f, err)
			_, err = call(backends.DeadTarget{Aggregate: "x", Record: &backends.Ref{}})
			require.Error(f, err)
		}
	})},
	{"Park/lists go on after a place", withDead(func(f *fixture, d backends.DeadLetters) {
		f.publish("t", repeat("", 5)...)
		s := f.open("a")
		got := s.read(10)
		for i := range got {
			s.settle(outcome(&got[i], backends.Skip))
		}
		first, err := d.Dead(f.Context(), backends.DeadFilter{Limit: 2})
		require.NoError(f, err)
		require.Len(f, first, 2)
		rest, err := d.Dead(f.Context(), backends.DeadFilter{After: first[1].Ref})
		require.NoError(f, err)
		require.Len(f, rest, 3)
		old, err := d.Dead(f.Context(), backends.DeadFilter{MinAge: limit})
		require.NoError(f, err)
		require.Empty(f, old)
	})},
}

// withDead runs a case on outboxes that keep dead letters.
func withDead(run func(f *fixture, d backends.DeadLetters)) func(f *fixture) {
	return func(f *fixture) {
		d, ok := f.box.(backends.DeadLetters)
		if !ok {
			f.Logf("not tried: this outbox shows no dead letters")
			return
		}
		run(f, d)
	}
}

// parkedAtTwo parks aggregate x at its second of four records.
func parkedAtTwo(f *fixture) *session {
	f.Helper()
	f.publish("t", repeat("x", 4)...)
	s := f.open("a")
	got := s.read(10)
	require.Len(f, got, 4)
	s.settle(outcome(&got[0], backends.Delivered), outcome(&got[1], backends.Park),
		outcome(&got[2], backends.Release), outcome(&got[3], backends.Release))
	return s
}
