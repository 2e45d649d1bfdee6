package postgres

import (
	"math"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// readToEnd is the cut of a shard in which everything visible has been read.
const readToEnd = math.MaxInt64

// scan is what a reader remembers. After a read, each row that was visible in its
// snapshot and is not settled was returned and is in hand, or is held, or has
// an id above its shard's cut. docs/decisions/0002 proves it.
type scan struct {
	token string   // of the server's incarnation; empty: nothing remembered
	xmax  string   // of the last read's snapshot
	xip   []string // transactions in progress then

	cut    [backends.Shards]int64
	owned  map[int]int64 // shard → the epoch under which it was read
	holds  [backends.Shards]shardHolds
	hand   map[backends.Ref]struct{} // returned, without an outcome
	topics []string                  // held back at the last read
	perRow int                       // bytes of payload a record, a running guess
	turn   int                       // where the next read begins among the shards
	swept  time.Time                 // the last time a shard was read from its start for safety
	sweep  int                       // which
}

// shardHolds is what of a shard must not be returned before a time.
type shardHolds struct {
	aggregates map[string]time.Time
	records    map[int64]time.Time // without an aggregate
	low        int64               // at or below this id minus one nothing is held; readToEnd: nothing is
}

// firstGuess of a payload's size keeps the first read of an unknown table small.
const firstGuess = 64 << 10

func newScan() *scan {
	s := &scan{owned: map[int]int64{}, hand: map[backends.Ref]struct{}{}, perRow: firstGuess}
	s.forget()
	return s
}

// forget drops all memory. Holds stay: they are by time, not by transaction.
func (s *scan) forget() {
	s.token, s.xmax, s.xip = "", "", nil
	s.cut = [backends.Shards]int64{}
	for i := range s.holds {
		s.holds[i].low = 0
	}
	clear(s.hand)
}

// own takes a lease over: a gained shard is read from its start, a lost one is
// forgotten.
func (s *scan) own(lease backends.Lease) {
	for shard, epoch := range s.owned {
		if now, held := lease.Epoch(shard); !held || now != epoch {
			delete(s.owned, shard)
		}
	}
	for _, l := range lease.Shards {
		if _, known := s.owned[l.Shard]; !known {
			s.owned[l.Shard] = l.Epoch
			s.cut[l.Shard] = 0
			s.holds[l.Shard] = shardHolds{low: readToEnd}
		}
	}
}

// rewind makes the next read of a shard begin at an id.
func (s *scan) rewind(r backends.Ref) { s.cut[r.Shard] = min(s.cut[r.Shard], r.ID-1) }

// release rewinds to what was returned and given no outcome.
func (s *scan) release() {
	for ref := range s.hand {
		s.rewind(ref)
	}
	clear(s.hand)
}

// hold keeps a record, and what follows it in its aggregate, back until a time.
func (s *scan) hold(ref backends.Ref, aggregate string, until time.Time) {
	h := &s.holds[ref.Shard]
	if aggregate == "" {
		if h.records == nil {
			h.records = map[int64]time.Time{}
		}
		h.records[ref.ID] = until
	} else {
		if h.aggregates == nil {
			h.aggregates = map[string]time.Time{}
		}
		h.aggregates[aggregate] = until
	}
	h.low = min(h.low, ref.ID-1)
}

// held reports whether a record must wait.
func (s *scan) held(ref backends.Ref, aggregate string, now time.Time) bool {
	h := &s.holds[ref.Shard]
	until, ok := h.records[ref.ID]
	if aggregate != "" {
		until, ok = h.aggregates[aggregate]
	}
	return ok && now.Before(until)
}

// expire ends the holds whose time has come, and those of topics that are let
// go. Their shards are read again from the lowest id that was held.
func (s *scan) expire(now time.Time, skipTopics []string) {
	freed := slices.ContainsFunc(s.topics, func(t string) bool { return !slices.Contains(skipTopics, t) })
	s.topics = append(s.topics[:0], skipTopics...)
	for shard := range s.holds {
		h := &s.holds[shard]
		ended := freed
		for a, until := range h.aggregates {
			if !now.Before(until) {
				delete(h.aggregates, a)
				ended = true
			}
		}
		for id, until := range h.records {
			if !now.Before(until) {
				delete(h.records, id)
				ended = true
			}
		}
		if ended {
			s.cut[shard] = min(s.cut[shard], h.low)
		}
		if len(h.aggregates) == 0 && len(h.records) == 0 && len(s.topics) == 0 {
			h.low = readToEnd
		}
	}
}

// scanned notes that a shard was read from an id with something left out.
func (s *scan) scanned(shard int, from int64) {
	h := &s.holds[shard]
	if len(h.aggregates) > 0 || len(s.topics) > 0 {
		h.low = min(h.low, from)
	}
}

// skipAggregates lists the held aggregates of the owned shards.
func (s *scan) skipAggregates() []string {
	names := []string{}
	for shard := range s.owned {
		for a := range s.holds[shard].aggregates {
			names = append(names, a)
		}
	}
	return names
}

// sweepEvery is how often one shard is read from its start although memory says
// that there is nothing: a net below the algorithm.
const sweepEvery = time.Second

func (s *scan) safetyNet(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for range backends.Shards {
		s.sweep = (s.sweep + 1) % backends.Shards
		if _, ok := s.owned[s.sweep]; ok {
			s.cut[s.sweep] = 0
			return
		}
	}
}
