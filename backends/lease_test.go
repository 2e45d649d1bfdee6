package backends_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

func TestLease_EpochOfAShard(t *testing.T) {
	l := backends.Lease{Shards: []backends.ShardLease{{Shard: 0, Epoch: 5}, {Shard: 3, Epoch: 7}, {Shard: 63, Epoch: 9}}}
	for shard, want := range map[int]int64{0: 5, 3: 7, 63: 9} {
		epoch, held := l.Epoch(shard)
		require.True(t, held)
		require.Equal(t, want, epoch)
	}
	for _, shard := range []int{-1, 1, 4, 64} {
		_, held := l.Epoch(shard)
		require.False(t, held, shard)
	}
	_, held := backends.Lease{}.Epoch(0)
	require.False(t, held)
}

func TestLease_OnlyCutsDownACopy(t *testing.T) {
	l := backends.Lease{
		Owner: "o", Surplus: []int{1}, Deadline: time.Unix(9, 0),
		Shards: []backends.ShardLease{{Shard: 0, Epoch: 1}, {Shard: 1, Epoch: 2}, {Shard: 2, Epoch: 3}},
	}
	odd := l.Only(func(shard int) bool { return shard%2 == 1 })
	require.Equal(t, backends.Lease{
		Owner: "o", Deadline: time.Unix(9, 0), Shards: []backends.ShardLease{{Shard: 1, Epoch: 2}},
	}, odd)
	odd.Shards[0].Epoch = 99
	require.Len(t, l.Shards, 3)
	require.EqualValues(t, 2, l.Shards[1].Epoch, "the copy shares memory with the lease")
	require.Equal(t, []int{1}, l.Surplus)
	require.Empty(t, l.Only(func(int) bool { return false }).Shards)
}
