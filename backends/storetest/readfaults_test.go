package storetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

func byUUID(msgs []*message.Message) []*message.Message {
	return slices.SortedFunc(slices.Values(msgs), func(a, b *message.Message) int { return cmp.Compare(a.UUID, b.UUID) })
}

// Ways in which reading and settling can be wrong.
var readFaults = map[string]fault{
	// Always from the first shard on.
	"a full shard starves the others": {"Read/a full shard", withRead(func() readFunc {
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			limit := w.Limit
			w.Limit = 10_000
			got, err := r.Read(ctx, l, w)
			return got[:min(len(got), limit)], err
		}
	})},
	"what was returned is not returned again": {"Read/what has no outcome", withRead(func() readFunc {
		seen := map[backends.Ref]bool{}
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			got, err := r.Read(ctx, l, w)
			got = slices.DeleteFunc(got, func(r backends.Record) bool { return seen[r.Ref] })
			for _, r := range got {
				seen[r.Ref] = true
			}
			return got, err
		}
	})},
	"one failure fails its whole batch for good": {"Settle/mixed", withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
			o = slices.Clone(o)
			failed := slices.ContainsFunc(o, func(o backends.Outcome) bool { return o.Action == backends.Retry })
			for i := range o {
				if failed && o[i].Action == backends.Release {
					o[i].Action = backends.Skip
				}
			}
			return r.Settle(ctx, l, o)
		}}
	})},
	"bytes without limit": {"Read/bytes", withRead(func() readFunc {
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			w.MaxBytes = 0
			return r.Read(ctx, l, w)
		}
	})},
	// A record above the limit is never returned.
	"a large record is stuck": {"Read/bytes", withRead(func() readFunc {
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			got, err := r.Read(ctx, l, w)
			return slices.DeleteFunc(got, func(r backends.Record) bool { return w.MaxBytes > 0 && len(r.Payload) > w.MaxBytes }), err
		}
	})},
	"shards are read without a lease": {"Read/only leased", withRead(func() readFunc {
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			l.Shards = nil
			for i := range backends.Shards {
				l.Shards = append(l.Shards, backends.ShardLease{Shard: i})
			}
			return r.Read(ctx, l, w)
		}
	})},
	"a topic held back holds its aggregates back": {"Read/topics", withRead(func() readFunc {
		return func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			skip := w.SkipTopics
			w.SkipTopics = nil
			got, err := r.Read(ctx, l, w)
			stopped := map[string]bool{}
			return slices.DeleteFunc(got, func(r backends.Record) bool {
				stopped[r.Aggregate] = stopped[r.Aggregate] || slices.Contains(skip, r.Topic)
				return stopped[r.Aggregate]
			}), err
		}
	})},
	// The first record that must wait holds everything up.
	"a retry holds all back": {"Read/failing records", withReader(func(r backends.Reader) *brokenReader {
		var until time.Time
		return &brokenReader{
			Reader: r,
			read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
				if time.Now().Before(until) {
					return nil, nil
				}
				return r.Read(ctx, l, w)
			},
			settle: func(r backends.Reader, ctx context.Context, l backends.Lease, outcomes []backends.Outcome) error {
				for _, o := range outcomes {
					if o.Action == backends.Retry {
						until = time.Now().Add(o.After)
					}
				}
				return r.Settle(ctx, l, outcomes)
			},
		}
	})},
	"a released record does not wait": {"Read/a released", withOutcome(func(o *backends.Outcome) {
		if o.Action == backends.Release {
			o.After = 0
		}
	})},
	"a release counts as an attempt": {"Read/a released", withOutcome(func(o *backends.Outcome) {
		if o.Action == backends.Release {
			o.Action = backends.Retry
		}
	})},
	"attempts are not counted": {"Settle/attempts", withOutcome(func(o *backends.Outcome) {
		if o.Action == backends.Retry {
			o.Action = backends.Release
		}
	})},
	"a retry's time is kept in memory only": {"Order/a retry waits for its time after", withOutcome(func(o *backends.Outcome) {
		if o.Action == backends.Retry {
			o.Action = backends.Release
		}
	})},
	"skip parks": {"Park/skip", withOutcome(func(o *backends.Outcome) {
		if o.Action == backends.Skip {
			o.Action = backends.Park
		}
	})},
	"the reason is lost": {"Park/the aggregate", withOutcome(func(o *backends.Outcome) { o.Err = nil })},
}

// withOutcome changes each outcome before it is recorded.
func withOutcome(change func(o *backends.Outcome)) func(*memory.Store) Store {
	return withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, l backends.Lease, outcomes []backends.Outcome) error {
			outcomes = slices.Clone(outcomes)
			for i := range outcomes {
				change(&outcomes[i])
			}
			return r.Settle(ctx, l, outcomes)
		}}
	})
}
