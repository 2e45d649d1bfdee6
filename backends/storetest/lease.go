package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// waitABit is long for a database and short for a test.
const waitABit = 400 * time.Millisecond

var leaseCases = []testCase{
	{"Lease/a sole owner has all shards and keeps its epochs", func(f *fixture) {
		before := time.Now()
		l := f.lease("a")
		require.Len(f, l.Shards, backends.Shards)
		require.Empty(f, l.Surplus)
		require.False(f, l.Deadline.After(time.Now().Add(term)))
		require.False(f, l.Deadline.Before(before.Add(term-time.Second)))
		require.Equal(f, l.Shards, f.lease("a").Shards)
	}},
	{"Lease/shares are fair and given back in good order", func(f *fixture) {
		f.lease("a")
		require.Empty(f, f.lease("b").Shards, "a living owner's shard was taken")
		a := f.lease("a")
		require.Len(f, a.Shards, backends.Shards)
		require.Len(f, a.Surplus, backends.Shards/2)
		f.giveBack(a)
		require.Len(f, f.lease("b").Shards, backends.Shards/2)
		require.Empty(f, f.lease("c").Shards)
		f.giveBack(f.lease("a"))
		f.giveBack(f.lease("b"))
		total := 0
		for _, owner := range []string{"a", "b", "c"} {
			l := f.lease(owner)
			require.Empty(f, l.Surplus)
			require.LessOrEqual(f, len(l.Shards), backends.Shards/3+1)
			total += len(l.Shards)
		}
		require.Equal(f, backends.Shards, total)
	}},
	{"Lease/no shard has two owners", func(f *fixture) {
		f.lease("a")
		f.lease("b")
		f.giveBack(f.lease("a"))
		owner := map[int]string{}
		for _, o := range []string{"b", "a"} {
			for _, s := range f.lease(o).Shards {
				require.Empty(f, owner[s.Shard], "shard %d", s.Shard)
				owner[s.Shard] = o
			}
		}
		require.Len(f, owner, backends.Shards)
	}},
	{"Lease/an expired one is taken over under a higher epoch", func(f *fixture) {
		end := time.Now().Add(waitABit)
		a, err := f.box.Lease(f.Context(), "a", waitABit)
		require.NoError(f, err)
		require.True(f, len(f.lease("b").Shards) == 0 || time.Now().After(end), "the term of a has not ended")
		b := f.takeOver("b")
		for i, s := range b.Shards {
			require.Equal(f, a.Shards[i].Shard, s.Shard)
			require.Greater(f, s.Epoch, a.Shards[i].Epoch)
		}
		require.Empty(f, f.lease("a").Shards, "a came back into what b holds")
	}},
	{"Lease/a clean stop hands over at once", func(f *fixture) {
		a := f.lease("a")
		require.NoError(f, f.box.Release(f.Context(), a))
		require.NoError(f, f.box.Release(f.Context(), backends.Lease{Owner: "a"}))
		require.Len(f, f.lease("b").Shards, backends.Shards)
		require.NoError(f, f.box.Release(f.Context(), a), "a second time does nothing")
		require.Len(f, f.lease("b").Shards, backends.Shards)
	}},
	{"Lease/a stale owner records deliveries and nothing else", staleOwner},
}

// giveBack releases the surplus of a lease.
func (f *fixture) giveBack(l backends.Lease) {
	f.Helper()
	surplus := map[int]bool{}
	for _, s := range l.Surplus {
		surplus[s] = true
	}
	require.NoError(f, f.box.Release(f.Context(), l.Only(func(s int) bool { return surplus[s] })))
}

// takeOver waits until an owner has all shards.
func (f *fixture) takeOver(owner string) backends.Lease {
	f.Helper()
	for end := time.Now().Add(limit); ; f.pause(10 * time.Millisecond) {
		if l := f.lease(owner); len(l.Shards) == backends.Shards {
			return l
		}
		require.True(f, time.Now().Before(end), "no take-over in %v", limit)
	}
}

func staleOwner(f *fixture) {
	f.series("t", "x", 3)
	f.series("t", "", 2)
	l, err := f.box.Lease(f.Context(), "a", waitABit)
	require.NoError(f, err)
	a := &session{fixture: f, lease: l, reader: f.box.Reader()}
	got := a.read(10)
	require.Len(f, got, 5)
	x, loose := of(got, "x"), of(got, "")

	b := &session{fixture: f, lease: f.takeOver("b"), reader: f.box.Reader()}
	require.ErrorIs(f, a.reader.Settle(f.Context(), a.lease, []backends.Outcome{
		outcome(&x[0], backends.Delivered),
		outcome(&x[1], backends.Park),
		outcome(&loose[0], backends.Skip),
		{Record: &loose[1], Action: backends.Retry, After: limit, Err: errStale},
	}), backends.ErrLeaseLost)

	rest := b.drain(10)
	require.Equal(f, numbers(2, 3), payloads(of(rest, "x")), "only the delivery counts")
	require.Len(f, of(rest, ""), 2)
	for _, r := range rest {
		require.Zero(f, r.Attempts)
	}
}
