package postgres

import "github.com/outmill/outmill/backends"

// question is what is asked of the read statement.
type question struct {
	token, xmax      string
	xip              []string
	shards           []int16
	cuts             []int64
	limits           []int32
	skip, skipTopics []string
	limit, maxBytes  int
}

// firstXmax stands for no transaction: nothing is at or above it.
const firstXmax = "18446744073709551615"

func (r *reader) ask(lease backends.Lease, want backends.Want) question {
	s := r.scan
	q := question{
		token: s.token, xmax: s.xmax, xip: s.xip, skip: s.skipAggregates(), skipTopics: want.SkipTopics,
		limit: want.Limit, maxBytes: want.MaxBytes,
	}
	if q.xmax == "" {
		q.xmax = firstXmax
	}
	if q.xip == nil {
		q.xip = []string{}
	}
	if q.skipTopics == nil {
		q.skipTopics = []string{}
	}
	if want.MaxBytes > 0 {
		q.limit = min(q.limit, max(1, want.MaxBytes/s.perRow+1))
	}
	s.allot(&q, lease)
	return q
}

// allot shares the batch out. Shards known to hold more come first and get most
// of it; the rest need only show that something has come: a shard that has more
// says so by being cut. Where the batch is smaller than the number of shards,
// each read begins at another.
func (s *scan) allot(q *question, lease backends.Lease) {
	n := len(lease.Shards)
	s.turn++
	var known, rest []int16
	for i := range n {
		shard := lease.Shards[(i+s.turn)%n].Shard
		if s.cut[shard] != readToEnd {
			known = append(known, int16(shard))
		} else {
			rest = append(rest, int16(shard))
		}
	}
	budget := q.limit
	give := func(shards []int16, share int) {
		for _, shard := range shards {
			limit := min(share, budget)
			if limit == 0 {
				return
			}
			budget -= limit
			q.shards = append(q.shards, shard)
			q.cuts = append(q.cuts, s.cut[shard])
			q.limits = append(q.limits, int32(limit))
		}
	}
	most := q.limit
	if len(rest) > 0 {
		most = q.limit - q.limit/4
	}
	if len(known) > 0 {
		give(known, max(1, most/len(known)))
	}
	if len(rest) > 0 {
		give(rest, max(1, budget/len(rest)))
	}
}
