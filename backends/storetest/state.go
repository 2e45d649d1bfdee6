package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var stateCases = []testCase{
	{"State/a fresh outbox passes its check and is empty", func(f *fixture) {
		require.NoError(f, f.box.Check(f.Context()))
		b, err := f.box.Backlog(f.Context())
		require.NoError(f, err)
		require.Equal(f, backends.Backlog{UnownedShards: backends.Shards}, backends.Backlog{
			Ready: b.Ready, Delayed: b.Delayed, Dead: b.Dead, Parked: b.Parked, OldestAge: b.OldestAge, UnownedShards: b.UnownedShards,
		})
		require.Empty(f, b.Owners)
	}},
	{"State/the backlog counts what waits", func(f *fixture) {
		f.publish("t", repeat("x", 3)...)
		f.publish("t", repeat("", 4)...)
		s := f.open("a")
		got := s.read(10)
		loose := of(got, "")
		o := outcome(&loose[0], backends.Retry)
		o.After = limit
		s.settle(o, outcome(&loose[1], backends.Skip), outcome(&loose[2], backends.Delivered))
		f.pause(20 * time.Millisecond)
		b, err := f.box.Backlog(f.Context())
		require.NoError(f, err)
		require.EqualValues(f, 4, b.Ready)
		require.EqualValues(f, 1, b.Delayed)
		require.EqualValues(f, 1, b.Dead)
		require.False(f, b.Capped)
		require.GreaterOrEqual(f, b.OldestAge, 20*time.Millisecond)
		require.Less(f, b.OldestAge, limit)
		require.Zero(f, b.UnownedShards)
		require.Equal(f, []string{"a"}, b.Owners)
	}},
	{"State/purging takes nothing that waits or is dead", func(f *fixture) {
		p, ok := f.box.(backends.Purger)
		if !ok {
			f.Logf("not tried: this outbox keeps nothing to purge")
			return
		}
		f.publish("t", repeat("", 6)...)
		s := f.open("a")
		got := s.read(10)
		require.Len(f, got, 6)
		s.settle(outcome(&got[0], backends.Skip), outcome(&got[1], backends.Retry), outcome(&got[2], backends.Delivered))
		n, err := p.Purge(f.Context(), 1000)
		require.NoError(f, err)
		require.LessOrEqual(f, n, 1)
		b, err := f.box.Backlog(f.Context())
		require.NoError(f, err)
		require.EqualValues(f, 1, b.Dead)
		require.Len(f, s.drainTo(4), 4)
	}},
	{"State/a hint comes for what commits", func(f *fixture) {
		w, ok := f.box.(backends.Waker)
		if !ok {
			f.Logf("not tried: this outbox gives no hints")
			return
		}
		changed := w.Watch()
		hint, err := changed(f.Context())
		require.NoError(f, err)
		require.True(f, hint, "the first call must say so")
		tx := f.begin()
		require.NoError(f, tx.Publisher().Publish("t", msg("x", "1")))
		_, err = changed(f.Context())
		require.NoError(f, err)
		f.commit(tx)
		hint, err = changed(f.Context())
		require.NoError(f, err)
		require.True(f, hint, "a commit went unnoticed")
	}},
}
