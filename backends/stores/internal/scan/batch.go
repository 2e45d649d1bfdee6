package scan

import (
	"context"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// Ask is what one statement asks of a shard: at most Limit rows above Cut.
type Ask struct {
	Shard int
	Cut   int64
	Limit int
}

// Row is a row that was found.
type Row struct {
	backends.Record
	Wait   time.Duration // until its next attempt; 0: due
	Parked bool          // its aggregate is
	Drop   bool          // beyond MaxBytes: only its place is kept
}

// Found is what one statement found.
type Found struct {
	Rows   []Row
	counts [backends.Shards]int
	bytes  int // of payload, of the rows that are not dropped
	kept   int
	max    int
}

// NewFound prepares for an answer of at most so many bytes of payload; 0: no
// limit.
func NewFound(limit, maxBytes int) *Found {
	return &Found{Rows: make([]Row, 0, min(limit, 1024)), max: maxBytes}
}

// Full reports whether the limit on bytes is reached. Rows that come after that
// need only their place.
func (f *Found) Full() bool { return f.max > 0 && f.bytes >= f.max }

// Add adds a row, in the order of ids within a shard.
func (f *Found) Add(row Row) {
	f.counts[row.Shard]++
	if row.Drop = row.Drop || f.Full(); !row.Drop {
		f.bytes += len(row.Payload)
		f.kept++
	}
	f.Rows = append(f.Rows, row)
}

// Result is what a store must do with what was found.
type Result struct {
	Records []backends.Record // to return
	Parked  []backends.Ref    // to be moved to the dead letters
	More    bool              // a shard has not been read to its end

	// Afresh: what earlier statements of the same read found does not hold.
	Afresh bool
}

// maxRounds limits how many statements one Read may use to fill its batch.
const maxRounds = 2 * backends.Shards

// Fill reads by rounds, each one statement, until a batch is filled or nothing
// more is there. A round asks what Allot says and ends with Adopt.
func (s *State) Fill(ctx context.Context, lease backends.Lease, want backends.Want, round func(context.Context, backends.Lease, backends.Want) (Result, error)) ([]backends.Record, error) {
	if len(s.owned) == 0 {
		return nil, nil
	}
	var out []backends.Record
	left := want
	for range maxRounds {
		got, err := round(ctx, lease, left)
		if got.Afresh {
			clear(s.hand)
			out, left = nil, want
		}
		for _, rec := range got.Records {
			s.hand[rec.Ref] = struct{}{}
			left.MaxBytes -= len(rec.Payload)
		}
		if err != nil {
			return nil, err // what was found is released by the next read
		}
		out = append(out, got.Records...)
		left.Limit = want.Limit - len(out)
		if want.MaxBytes <= 0 {
			left.MaxBytes = 0
		} else if left.MaxBytes <= 0 {
			break
		}
		if !got.More || enough(len(out), want.Limit) {
			break
		}
	}
	return out, nil
}

// enough reports whether a batch is worth publishing: another statement for the
// last few records would cost more than it brings. Small batches are filled.
func enough(n, limit int) bool {
	return n >= limit || limit >= 4*backends.Shards && n >= limit*3/4
}

// Allot shares a batch out. Shards known to hold more come first and get most of
// it; the rest need only show that something has come: a shard that has more
// says so by being cut. Where the batch is smaller than the number of shards,
// each read begins at another.
func (s *State) Allot(lease backends.Lease, want backends.Want) []Ask {
	limit := want.Limit
	if want.MaxBytes > 0 {
		limit = min(limit, max(1, want.MaxBytes/s.perRow+1))
	}
	n := len(lease.Shards)
	s.turn++
	var known, rest []int
	for i := range n {
		shard := lease.Shards[(i+s.turn)%n].Shard
		if s.cut[shard] != ToEnd {
			known = append(known, shard)
		} else {
			rest = append(rest, shard)
		}
	}
	budget := limit
	asks := make([]Ask, 0, n)
	give := func(shards []int, share int) {
		for _, shard := range shards {
			if budget == 0 {
				return
			}
			n := min(share, budget)
			budget -= n
			asks = append(asks, Ask{Shard: shard, Cut: s.cut[shard], Limit: n})
		}
	}
	most := limit
	if len(rest) > 0 {
		most = limit - limit/4
	}
	if len(known) > 0 {
		give(known, max(1, most/len(known)))
	}
	if len(rest) > 0 {
		give(rest, max(1, budget/len(rest)))
	}
	return asks
}

// Adopt takes an answer into memory and says what becomes of each row: it is
// returned, must wait, or is of a parked aggregate. Rows below a cut that Lower
// has named since the question belong to it.
func (s *State) Adopt(asks []Ask, f *Found, now time.Time) Result {
	slices.SortFunc(f.Rows, func(x, y Row) int {
		if x.Shard != y.Shard {
			return x.Shard - y.Shard
		}
		return int(min(1, max(-1, x.ID-y.ID)))
	})
	var last [backends.Shards]int64
	for i := range f.Rows {
		last[f.Rows[i].Shard] = f.Rows[i].ID
	}
	for _, ask := range asks {
		from := s.cut[ask.Shard]
		if from == ToEnd {
			continue
		}
		s.scanned(ask.Shard, from)
		s.cut[ask.Shard] = ToEnd
		if f.counts[ask.Shard] >= ask.Limit {
			s.cut[ask.Shard] = last[ask.Shard]
		}
	}
	out := s.sort(f, now)
	for shard := range s.owned {
		out.More = out.More || s.cut[shard] != ToEnd
	}
	return out
}

func (s *State) sort(f *Found, now time.Time) Result {
	out := Result{Records: make([]backends.Record, 0, len(f.Rows))}
	for i := range f.Rows {
		row := &f.Rows[i]
		_, owned := s.owned[row.Shard]
		_, inHand := s.hand[row.Ref] // returned by an earlier round of this read
		switch {
		case !owned, inHand:
		case row.Drop:
			s.rewind(row.Ref)
		case row.Parked:
			out.Parked = append(out.Parked, row.Ref)
			s.rewind(row.Ref) // until it has been moved
		case s.held(row.Ref, row.Aggregate, now):
		case row.Wait > 0:
			// The wait was counted earlier, by the database: this is never early.
			s.hold(row.Ref, row.Aggregate, now.Add(row.Wait))
		default:
			out.Records = append(out.Records, row.Record)
		}
	}
	if n := f.kept; n > 0 {
		s.perRow = max(1, f.bytes/n, (s.perRow+f.bytes/n)/2)
	}
	return out
}
