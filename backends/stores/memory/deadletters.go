package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// Parked implements [backends.DeadLetters].
func (s *Store) Parked(ctx context.Context, after string, limit int) ([]backends.ParkedAggregate, error) {
	if limit < 0 {
		return nil, fmt.Errorf("memory: list parked aggregates: limit is %d, allowed is 0 or more", limit)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []backends.ParkedAggregate
	for a, p := range s.parked {
		if a <= after {
			continue
		}
		for _, d := range s.dead {
			if d.Aggregate == a && p.Records < 1000 {
				p.Records++
			}
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b backends.ParkedAggregate) int {
		if a.Aggregate < b.Aggregate {
			return -1
		}
		return 1
	})
	return out[:min(len(out), limit)], nil
}

// Dead implements [backends.DeadLetters].
func (s *Store) Dead(ctx context.Context, f backends.DeadFilter) ([]backends.DeadLetter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.Limit < 0 {
		return nil, fmt.Errorf("memory: list dead letters: Limit is %d, allowed is 0 or more", f.Limit)
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := time.Now().Add(-f.MinAge)
	var out []backends.DeadLetter
	for _, d := range s.dead {
		if byRef(d, f.After) <= 0 || f.Aggregate != "" && d.Aggregate != f.Aggregate ||
			f.Topic != "" && d.Topic != f.Topic || d.DeadAt.After(before) {
			continue
		}
		if len(out) < f.Limit {
			out = append(out, d)
		}
	}
	return out, nil
}

// Requeue implements [backends.DeadLetters].
func (s *Store) Requeue(ctx context.Context, t backends.DeadTarget) (int, error) {
	if err := check(ctx, t); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Record == nil {
		return s.unpark(t.Aggregate, true)
	}
	i, ok := slices.BinarySearchFunc(s.dead, *t.Record, byRef)
	if !ok {
		return 0, fmt.Errorf("memory: record %d of shard %d: %w", t.Record.ID, t.Record.Shard, backends.ErrNotFound)
	}
	if _, parked := s.parked[s.dead[i].Aggregate]; parked {
		return 0, fmt.Errorf("memory: record %d: %w", t.Record.ID, backends.ErrParked)
	}
	s.restore(s.dead[i])
	s.dead = slices.Delete(s.dead, i, i+1)
	return 1, nil
}

// Discard implements [backends.DeadLetters].
func (s *Store) Discard(ctx context.Context, t backends.DeadTarget) (int, error) {
	if err := check(ctx, t); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Record == nil {
		return s.unpark(t.Aggregate, false)
	}
	i, ok := slices.BinarySearchFunc(s.dead, *t.Record, byRef)
	if !ok {
		return 0, fmt.Errorf("memory: record %d of shard %d: %w", t.Record.ID, t.Record.Shard, backends.ErrNotFound)
	}
	d := s.dead[i]
	first := !slices.ContainsFunc(s.dead[:i], func(o backends.DeadLetter) bool { return o.Aggregate == d.Aggregate })
	s.dead = slices.Delete(s.dead, i, i+1)
	if _, parked := s.parked[d.Aggregate]; parked && first {
		if _, err := s.unpark(d.Aggregate, true); err != nil {
			return 0, err
		}
	}
	return 1, nil
}

func check(ctx context.Context, t backends.DeadTarget) error {
	if (t.Aggregate == "") == (t.Record == nil) {
		return errors.New("memory: name an aggregate or a record, not both and not neither")
	}
	return ctx.Err()
}

// unpark takes an aggregate's marker away, and its dead letters with it: back to
// the outbox, or for good. The caller holds mu.
func (s *Store) unpark(aggregate string, keep bool) (int, error) {
	if _, ok := s.parked[aggregate]; !ok {
		return 0, fmt.Errorf("memory: aggregate %q is not parked: %w", aggregate, backends.ErrNotFound)
	}
	delete(s.parked, aggregate)
	n := 0
	s.dead = slices.DeleteFunc(s.dead, func(d backends.DeadLetter) bool {
		if d.Aggregate != aggregate {
			return false
		}
		n++
		if keep {
			s.restore(d)
		}
		return true
	})
	return n, nil
}

// restore puts a dead letter back under its id. The caller holds mu.
func (s *Store) restore(d backends.DeadLetter) {
	d.Attempts = 0
	s.insert(&row{Record: d.Record})
}
