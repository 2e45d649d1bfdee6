// Package memory is an outbox in the memory of one process: the reference that
// the other stores are measured against, and a store for tests. Nothing of it
// outlives the process.
//
// It behaves as a database does: several transactions may be open at once, ids
// are handed out when a message is appended, so a lower id may become visible
// after a higher one, and a transaction holds each sequence that it has drawn
// from until it ends.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Config sets a store up. Its zero value works.
type Config struct {
	// MaxPayload is how many bytes a payload may have. Default: 16 MiB.
	MaxPayload int
	// SequencesOff leaves records without a sequence unless they bring one.
	SequencesOff bool
	// Retention keeps delivered records for so long. Default: they are dropped.
	Retention time.Duration
}

// Store is an outbox in memory. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu        sync.Mutex
	nextID    int64
	shards    [backends.Shards]shard
	sequences map[sequenceKey]*sequence
	owners    map[string]time.Time // until when each is alive
	parked    map[string]backends.ParkedAggregate
	dead      []backends.DeadLetter // by shard and id
	archive   []archived            // by time of delivery
	inboxes   map[string]*inbox     // by name
	changes   int64                 // rises with each change that may make records readable
}

type shard struct {
	owner string
	epoch int64
	rows  []*row // by id
}

type row struct {
	backends.Record
	next      time.Time // of the next attempt
	lastError string
}

type archived struct {
	backends.Record
	at time.Time
}

var (
	_ backends.Outbox      = (*Store)(nil)
	_ backends.DeadLetters = (*Store)(nil)
	_ backends.Waker       = (*Store)(nil)
	_ backends.Purger      = (*Store)(nil)
)

// New makes an empty store. It reports every fault of the configuration.
func New(cfg Config) (*Store, error) {
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = records.DefaultMaxPayload
	}
	var faults []error
	if cfg.MaxPayload < 1 || cfg.MaxPayload > records.HardMaxPayload {
		faults = append(faults, fmt.Errorf("memory: MaxPayload is %d, allowed is 1 to %d", cfg.MaxPayload, records.HardMaxPayload))
	}
	if cfg.Retention < 0 {
		faults = append(faults, fmt.Errorf("memory: Retention is %v, allowed is 0 or more", cfg.Retention))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Store{
		cfg:       cfg,
		sequences: map[sequenceKey]*sequence{},
		owners:    map[string]time.Time{},
		parked:    map[string]backends.ParkedAggregate{},
	}, nil
}

// Check implements [backends.Outbox].
func (s *Store) Check(ctx context.Context) error { return ctx.Err() }

// Backlog implements [backends.Outbox].
func (s *Store) Backlog(ctx context.Context) (backends.Backlog, error) {
	if err := ctx.Err(); err != nil {
		return backends.Backlog{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	b := backends.Backlog{Dead: int64(len(s.dead)), Parked: int64(len(s.parked))}
	for i := range s.shards {
		if until, alive := s.owners[s.shards[i].owner]; !alive || !now.Before(until) {
			b.UnownedShards++
		}
		for _, r := range s.shards[i].rows {
			if now.Before(r.next) {
				b.Delayed++
			} else {
				b.Ready++
			}
			b.OldestAge = max(b.OldestAge, now.Sub(r.CreatedAt))
		}
	}
	for owner, until := range s.owners {
		if now.Before(until) {
			b.Owners = append(b.Owners, owner)
		}
	}
	slices.Sort(b.Owners)
	return b, nil
}

// Watch implements [backends.Waker].
func (s *Store) Watch() func(ctx context.Context) (bool, error) {
	seen := int64(-1)
	return func(ctx context.Context) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fresh := s.changes != seen
		seen = s.changes
		return fresh, ctx.Err()
	}
}

// Purge implements [backends.Purger].
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := time.Now().Add(-s.cfg.Retention)
	n := 0
	for n < len(s.archive) && n < limit && s.archive[n].at.Before(before) {
		n++
	}
	s.archive = slices.Delete(s.archive, 0, n)
	return n, nil
}

// Lease implements [backends.Outbox].
func (s *Store) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if owner == "" || ttl <= 0 {
		return backends.Lease{}, fmt.Errorf("memory: a lease needs an owner and a term above 0, got %q and %v", owner, ttl)
	}
	if err := ctx.Err(); err != nil {
		return backends.Lease{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.owners[owner] = now.Add(ttl)
	for o, until := range s.owners {
		if !now.Before(until) {
			delete(s.owners, o)
		}
	}
	fair := (backends.Shards + len(s.owners) - 1) / len(s.owners)
	lease := backends.Lease{Owner: owner, Deadline: now.Add(ttl)}
	held := 0
	for i := range s.shards {
		if s.shards[i].owner == owner {
			held++
		}
	}
	for i := range s.shards {
		sh := &s.shards[i]
		if _, alive := s.owners[sh.owner]; !alive && held < fair {
			sh.owner = owner
			sh.epoch++
			held++
		}
		if sh.owner != owner {
			continue
		}
		lease.Shards = append(lease.Shards, backends.ShardLease{Shard: i, Epoch: sh.epoch})
		if len(lease.Shards) > fair {
			lease.Surplus = append(lease.Surplus, i)
		}
	}
	return lease, nil
}

// Release implements [backends.Outbox].
func (s *Store) Release(ctx context.Context, lease backends.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lease.Shards {
		if s.holds(lease, l.Shard) {
			s.shards[l.Shard].owner = ""
		}
	}
	if len(lease.Shards) == 0 {
		delete(s.owners, lease.Owner)
	}
	return nil
}

// holds reports whether a lease still holds a shard. The caller holds mu.
func (s *Store) holds(lease backends.Lease, shard int) bool {
	epoch, leased := lease.Epoch(shard)
	return leased && s.shards[shard].owner == lease.Owner && s.shards[shard].epoch == epoch
}

// insert puts a row in its place. The caller holds mu.
func (s *Store) insert(r *row) {
	rows := s.shards[r.Shard].rows
	i, _ := slices.BinarySearchFunc(rows, r.ID, byID)
	s.shards[r.Shard].rows = slices.Insert(rows, i, r)
	s.changes++
}

// remove takes a row out, if it is there. The caller holds mu.
func (s *Store) remove(ref backends.Ref) (*row, bool) {
	rows := s.shards[ref.Shard].rows
	i, ok := slices.BinarySearchFunc(rows, ref.ID, byID)
	if !ok {
		return nil, false
	}
	r := rows[i]
	s.shards[ref.Shard].rows = slices.Delete(rows, i, i+1)
	return r, true
}

func byID(r *row, id int64) int {
	switch {
	case r.ID < id:
		return -1
	case r.ID > id:
		return 1
	}
	return 0
}
