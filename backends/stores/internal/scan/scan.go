// Package scan is a reader's memory: how far each shard has been read, what is in
// hand, and what must wait. Stores differ in how they find rows; what becomes of
// a row that was found is the same in all of them.
//
// After a read, each row that was visible to it and is not settled was returned
// and is in hand, or is held, or has an id above its shard's cut. A store adds
// its own rule for rows that become visible below a cut: it calls Lower.
package scan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// ToEnd is the cut of a shard in which everything visible has been read.
const ToEnd = math.MaxInt64

// firstGuess of a payload's size keeps the first read of an unknown table small.
const firstGuess = 64 << 10

// State is the memory of one reader. It is not safe for concurrent use.
type State struct {
	cut    [backends.Shards]int64
	owned  map[int]int64 // shard → the epoch under which it was read
	holds  [backends.Shards]holds
	hand   map[backends.Ref]struct{} // returned, without an outcome
	topics []string                  // held back at the last read
	perRow int                       // bytes of payload a record, a running guess
	turn   int                       // where the next read begins among the shards
	swept  time.Time                 // when a shard was last read from its start for safety
	sweep  int                       // which
}

// holds is what of a shard must not be returned before a time.
type holds struct {
	aggregates map[string]hold
	records    map[int64]time.Time // without an aggregate
	topics     int64               // nothing of a topic that is held back is at or below it
	top        int64               // no aggregate's hold is above it
}

// hold is an aggregate's: nothing of it at or below low must wait.
type hold struct {
	until time.Time
	low   int64
}

var noHolds = holds{topics: ToEnd}

// New returns an empty memory.
func New() *State {
	s := &State{owned: map[int]int64{}, hand: map[backends.Ref]struct{}{}, perRow: firstGuess}
	for i := range s.holds {
		s.holds[i] = noHolds
	}
	return s
}

// Forget makes the next read begin at the start of every shard. What is in hand
// stays there, and what must wait still waits: that is by time, not by place.
func (s *State) Forget() {
	s.cut = [backends.Shards]int64{}
	for i := range s.holds {
		s.holds[i].lower(0)
	}
}

// Begin prepares a read: it takes the lease over, releases what is in hand, and
// ends the holds whose time has come.
func (s *State) Begin(lease backends.Lease, skipTopics []string, now time.Time) {
	s.own(lease)
	s.release()
	s.expire(now, skipTopics)
}

// own takes a lease over: a gained shard is read from its start, a lost one is
// forgotten.
func (s *State) own(lease backends.Lease) {
	for shard, epoch := range s.owned {
		if now, held := lease.Epoch(shard); !held || now != epoch {
			delete(s.owned, shard)
		}
	}
	for _, l := range lease.Shards {
		if _, known := s.owned[l.Shard]; !known {
			s.owned[l.Shard] = l.Epoch
			s.cut[l.Shard] = 0
			s.holds[l.Shard] = noHolds
		}
	}
}

// Lower makes the next read of a shard begin above an id at the latest.
func (s *State) Lower(shard int, id int64) { s.cut[shard] = min(s.cut[shard], id) }

func (s *State) rewind(r backends.Ref) { s.Lower(r.Shard, r.ID-1) }

// release rewinds to what was returned and given no outcome.
func (s *State) release() {
	for ref := range s.hand {
		s.rewind(ref)
	}
	clear(s.hand)
}

// hold keeps a record, and what follows it in its aggregate, back until a time.
func (s *State) hold(ref backends.Ref, aggregate string, until time.Time) {
	h := &s.holds[ref.Shard]
	if aggregate == "" {
		if h.records == nil {
			h.records = map[int64]time.Time{}
		}
		h.records[ref.ID] = until
		return
	}
	if h.aggregates == nil {
		h.aggregates = map[string]hold{}
	}
	low := ref.ID - 1
	if was, held := h.aggregates[aggregate]; held {
		low = min(low, was.low)
		if was.until.After(until) {
			until = was.until
		}
	}
	h.aggregates[aggregate] = hold{until: until, low: low}
	h.top = max(h.top, low)
}

// held reports whether a record must wait, and notes where it is if so.
func (s *State) held(ref backends.Ref, aggregate string, now time.Time) bool {
	h := &s.holds[ref.Shard]
	if aggregate == "" {
		until, ok := h.records[ref.ID]
		return ok && now.Before(until)
	}
	// An aggregate is held until expire lets it go, also when its time comes
	// between two rounds of a read: what was left out in the first is below the
	// cut of the second, and what follows it would go first.
	a, ok := h.aggregates[aggregate]
	if !ok {
		return false
	}
	if a.low >= ref.ID {
		h.aggregates[aggregate] = hold{until: a.until, low: ref.ID - 1}
	}
	return true
}

// expire ends the holds whose time has come, and those of topics that are let
// go. Each shard is read again from the lowest id that was held.
func (s *State) expire(now time.Time, skipTopics []string) {
	freed := slices.ContainsFunc(s.topics, func(t string) bool { return !slices.Contains(skipTopics, t) })
	s.topics = append(s.topics[:0], skipTopics...)
	for shard := range s.holds {
		h := &s.holds[shard]
		if freed {
			s.Lower(shard, h.topics)
		}
		if len(s.topics) == 0 {
			h.topics = ToEnd
		}
		for name, a := range h.aggregates {
			if !now.Before(a.until) {
				delete(h.aggregates, name)
				s.Lower(shard, a.low)
			}
		}
		for id, until := range h.records {
			if !now.Before(until) {
				delete(h.records, id)
				s.Lower(shard, id-1)
			}
		}
	}
}

// scanned notes that a shard was read from an id with something left out.
func (s *State) scanned(shard int, from int64) {
	h := &s.holds[shard]
	if len(s.topics) > 0 {
		h.topics = min(h.topics, from)
	}
	h.lower(from)
}

// lower takes what an aggregate's holds leave out down to an id.
func (h *holds) lower(from int64) {
	if len(h.aggregates) == 0 {
		h.top = 0
	}
	if h.top <= from {
		return
	}
	for name, a := range h.aggregates {
		if a.low > from {
			h.aggregates[name] = hold{until: a.until, low: from}
		}
	}
	h.top = from
}

// SkipAggregates lists the held aggregates of the owned shards.
func (s *State) SkipAggregates() []string {
	names := []string{}
	for shard := range s.owned {
		for a := range s.holds[shard].aggregates {
			names = append(names, a)
		}
	}
	return names
}

// Accounts reports whether memory accounts for a row that was visible to the last
// read and is not settled: the invariant, which the stores' tests check.
func (s *State) Accounts(ref backends.Ref, aggregate, topic string) bool {
	if _, owned := s.owned[ref.Shard]; !owned || ref.ID > s.cut[ref.Shard] {
		return true
	}
	if _, inHand := s.hand[ref]; inHand {
		return true
	}
	h := &s.holds[ref.Shard]
	if slices.Contains(s.topics, topic) && h.topics < ref.ID {
		return true
	}
	if aggregate == "" {
		_, held := h.records[ref.ID]
		return held
	}
	a, held := h.aggregates[aggregate]
	return held && a.low < ref.ID
}

// sweepEvery is how often one shard is read from its start although memory says
// that there is nothing: a net below the algorithm.
const sweepEvery = time.Second

// SafetyNet makes the next read of one shard begin at its start, another shard
// every second.
func (s *State) SafetyNet(now time.Time) {
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

// Remember takes outcomes that were recorded into memory. recorded says whether
// more than deliveries was recorded of a shard. It returns
// [backends.ErrLeaseLost] where an outcome was not.
func (s *State) Remember(outcomes []backends.Outcome, recorded func(shard int) bool) error {
	now := time.Now()
	lost := false
	for _, o := range outcomes {
		ref := o.Record.Ref
		delete(s.hand, ref)
		switch {
		case o.Action == backends.Delivered:
		case o.Action == backends.Release:
			if o.After > 0 {
				s.hold(ref, o.Record.Aggregate, now.Add(o.After))
			}
			s.rewind(ref)
		case !recorded(ref.Shard):
			lost = true
			s.rewind(ref)
		case o.Action == backends.Retry:
			s.hold(ref, o.Record.Aggregate, now.Add(o.After))
		}
	}
	if lost {
		return fmt.Errorf("settle: %w", backends.ErrLeaseLost)
	}
	return nil
}

// Unknown takes outcomes into memory of which nothing is known to have been
// recorded: they will be read again.
func (s *State) Unknown(outcomes []backends.Outcome) {
	for _, o := range outcomes {
		delete(s.hand, o.Record.Ref)
		s.rewind(o.Record.Ref)
	}
}
