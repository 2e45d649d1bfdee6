package scan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// A record's time comes between two rounds of one read: what follows it in its
// aggregate must not go first.
func TestAdopt_AHoldLastsForTheWholeRead(t *testing.T) {
	start := time.Now()
	row := func(id int64, wait time.Duration) *scan.Found {
		f := scan.NewFound(1, 0)
		f.Add(scan.Row{Record: backends.Record{Ref: backends.Ref{ID: id}, Aggregate: "a"}, Wait: wait})
		return f
	}
	lease := backends.Lease{Shards: []backends.ShardLease{{Shard: 0, Epoch: 1}}}
	want := backends.Want{Limit: 1}
	s := scan.New()
	s.Begin(lease, nil, start)
	require.Empty(t, s.Adopt(s.Allot(lease, want), row(1, time.Millisecond), start).Records)
	asks := s.Allot(lease, want)
	require.EqualValues(t, 1, asks[0].Cut)
	later := start.Add(time.Second)
	require.Empty(t, s.Adopt(asks, row(2, 0), later).Records, "record 2 went before record 1")

	s.Begin(lease, nil, later)
	asks = s.Allot(lease, want)
	require.EqualValues(t, 0, asks[0].Cut)
	require.Len(t, s.Adopt(asks, row(1, 0), later).Records, 1)
}
