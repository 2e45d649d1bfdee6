package memory

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// reader scans from the start each time: what is not settled is there.
type reader struct {
	store *Store
	until map[backends.Ref]time.Time // released with a wait
	turn  int                        // where the next read begins among the shards
}

// Reader implements [backends.Outbox].
func (s *Store) Reader() backends.Reader {
	return &reader{store: s, until: map[backends.Ref]time.Time{}}
}

// Read implements [backends.Reader].
func (r *reader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if want.Limit <= 0 {
		return nil, fmt.Errorf("memory: read: Limit is %d, allowed is 1 or more", want.Limit)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.until, func(_ backends.Ref, until time.Time) bool { return !now.Before(until) })

	// One record of each shard in turn, so that a full shard starves no other.
	due := make([][]*row, 0, len(lease.Shards))
	for i := range lease.Shards {
		shard := lease.Shards[(i+r.turn)%len(lease.Shards)].Shard
		due = append(due, r.due(shard, want, now))
	}
	r.turn++
	var out []backends.Record
	size := 0
	for i := 0; ; i++ {
		more := false
		for _, rows := range due {
			if i >= len(rows) {
				continue
			}
			more = true
			if len(out) == want.Limit || want.MaxBytes > 0 && len(out) > 0 && size >= want.MaxBytes {
				return sorted(out), nil
			}
			out = append(out, copyOf(rows[i], now))
			size += len(rows[i].Payload)
		}
		if !more {
			return sorted(out), nil
		}
	}
}

func sorted(out []backends.Record) []backends.Record {
	slices.SortStableFunc(out, func(a, b backends.Record) int {
		if a.Shard != b.Shard {
			return a.Shard - b.Shard
		}
		return int(a.ID - b.ID)
	})
	return out
}

func copyOf(r *row, now time.Time) backends.Record {
	c := r.Record
	c.Payload = bytes.Clone(r.Payload)
	c.Metadata = maps.Clone(r.Metadata)
	c.Age = now.Sub(r.CreatedAt)
	return c
}

// due lists what of a shard may be returned, and moves records of parked
// aggregates to the dead letters.
func (r *reader) due(shard int, want backends.Want, now time.Time) []*row {
	s := r.store
	var out, aside []*row
	waiting := map[string]bool{} // aggregates of which an earlier record is not due
	for _, row := range s.shards[shard].rows {
		if _, parked := s.parked[row.Aggregate]; parked && row.Aggregate != "" {
			aside = append(aside, row)
			continue
		}
		if row.Aggregate != "" && waiting[row.Aggregate] || slices.Contains(want.SkipTopics, row.Topic) {
			continue
		}
		if now.Before(row.next) || now.Before(r.until[row.Ref]) {
			waiting[row.Aggregate] = true
			continue
		}
		if len(out) < want.Limit {
			out = append(out, row)
		}
	}
	for _, row := range aside {
		s.bury(row.Ref, row.Attempts, row.lastError, now)
	}
	return out
}

// bury moves a record to the dead letters. The caller holds mu.
func (s *Store) bury(ref backends.Ref, attempts int, reason string, now time.Time) {
	r, ok := s.remove(ref)
	if !ok {
		return
	}
	r.Attempts = attempts
	d := backends.DeadLetter{Record: r.Record, DeadAt: now.UTC(), LastError: reason}
	i, _ := slices.BinarySearchFunc(s.dead, ref, byRef)
	s.dead = slices.Insert(s.dead, i, d)
}

func byRef(d backends.DeadLetter, ref backends.Ref) int {
	if d.Shard != ref.Shard {
		return d.Shard - ref.Shard
	}
	return int(d.ID - ref.ID)
}

// Settle implements [backends.Reader].
func (r *reader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, o := range outcomes {
		if o.Record == nil || o.Action < backends.Delivered || o.Action > backends.Release {
			return fmt.Errorf("memory: settle: outcome %d names no record or no known action (%d)", i, o.Action)
		}
	}
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	lost := false
	for _, o := range outcomes {
		ref := o.Record.Ref
		if o.Action != backends.Delivered && o.Action != backends.Release && !s.holds(lease, ref.Shard) {
			lost = true
			continue
		}
		r.settle(o, now)
	}
	if lost {
		return fmt.Errorf("memory: settle: %w", backends.ErrLeaseLost)
	}
	return nil
}

func (r *reader) settle(o backends.Outcome, now time.Time) {
	s, ref := r.store, o.Record.Ref
	switch o.Action {
	case backends.Delivered:
		if row, ok := s.remove(ref); ok && s.cfg.Retention > 0 {
			s.archive = append(s.archive, archived{Record: row.Record, at: now})
		}
	case backends.Retry:
		if i, ok := slices.BinarySearchFunc(s.shards[ref.Shard].rows, ref.ID, byID); ok {
			row := s.shards[ref.Shard].rows[i]
			row.Attempts, row.next, row.lastError = o.Record.Attempts+1, now.Add(o.After), records.ErrorText(o.Err)
		}
	case backends.Park, backends.Skip:
		_, there := slices.BinarySearchFunc(s.shards[ref.Shard].rows, ref.ID, byID)
		if a := o.Record.Aggregate; o.Action == backends.Park && a != "" && there {
			if _, already := s.parked[a]; !already {
				s.parked[a] = backends.ParkedAggregate{Aggregate: a, ParkedAt: now.UTC(), Reason: records.ErrorText(o.Err)}
			}
		}
		s.bury(ref, o.Record.Attempts+1, records.ErrorText(o.Err), now)
	case backends.Release:
		if o.After > 0 {
			r.until[ref] = now.Add(o.After)
		}
	}
}
