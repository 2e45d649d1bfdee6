package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

// Ways in which leases, dead letters and figures can be wrong.
var operatorFaults = map[string]fault{
	"no surplus is named": {"Lease/shares", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, lease: func(l backends.Lease, _ time.Duration) backends.Lease {
			l.Surplus = nil
			return l
		}}
	})},
	"the epoch stays": {"Lease/an expired", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, lease: func(l backends.Lease, _ time.Duration) backends.Lease {
			for i := range l.Shards {
				l.Shards[i].Epoch = 1
			}
			return l
		}}
	})},
	"the deadline is after the term": {"Lease/a sole owner", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, lease: func(l backends.Lease, ttl time.Duration) backends.Lease {
			l.Deadline = l.Deadline.Add(ttl)
			return l
		}}
	})},
	"release waits for the term": {"Lease/a clean stop", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, release: func(*memory.Store, backends.Lease) error { return nil }}
	})},
	"requeue makes new numbers": {"Park/requeue", withReader(func(r backends.Reader) *brokenReader {
		return changes(r, func(r *backends.Record) { r.Sequence++ })
	})},
	"one record is requeued out of a parked aggregate": {"Park/discarding the first", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, requeue: func(s *memory.Store, t backends.DeadTarget) (int, error) {
			n, err := s.Requeue(context.Background(), t)
			if errors.Is(err, backends.ErrParked) {
				return 1, nil
			}
			return n, err
		}}
	})},
	"what is not there is no error": {"Park/what is not there", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, requeue: func(s *memory.Store, t backends.DeadTarget) (int, error) {
			n, err := s.Requeue(context.Background(), t)
			if errors.Is(err, backends.ErrNotFound) {
				return 0, nil
			}
			return n, err
		}}
	})},
	"the rest stays parked after a discard": {"Park/discarding the first", withOperator(operator{
		discard: func(s *memory.Store, t backends.DeadTarget) (int, error) {
			if t.Record == nil {
				return s.Discard(context.Background(), t)
			}
			return 1, nil
		},
	})},
	"dead letters are not counted": {"State/the backlog", withOperator(operator{
		backlog: func(b *backends.Backlog) { b.Dead = 0 },
	})},
	"what waits for its time counts as ready": {"State/the backlog", withOperator(operator{
		backlog: func(b *backends.Backlog) { b.Ready, b.Delayed = b.Ready+b.Delayed, 0 },
	})},
	"the age stands still": {"State/the backlog", withOperator(operator{
		backlog: func(b *backends.Backlog) { b.OldestAge = 0 },
	})},
	"no hint for a commit": {"State/a hint", withOperator(operator{
		watch: func(call int) bool { return call == 1 },
	})},
	"purging takes what is dead": {"State/purging", withOperator(operator{
		purge: func(s *memory.Store) error {
			dead, err := s.Dead(context.Background(), backends.DeadFilter{})
			for _, d := range dead {
				_, discardErr := s.Discard(context.Background(), backends.DeadTarget{Record: &d.Ref})
				err = errors.Join(err, discardErr)
			}
			return err
		},
	})},
	"purging takes what waits": {"State/purging", withOperator(operator{
		purge: func(s *memory.Store) error {
			l, err := s.Lease(context.Background(), "a", limit)
			if err != nil {
				return err
			}
			r := s.Reader()
			got, err := r.Read(context.Background(), l, backends.Want{Limit: 1})
			return errors.Join(err, r.Settle(context.Background(), l, deliveries(got)))
		},
	})},
}

// operator is an outbox whose optional abilities can be replaced.
type operator struct {
	*memory.Store
	discard func(*memory.Store, backends.DeadTarget) (int, error)
	backlog func(*backends.Backlog)
	watch   func(call int) bool
	purge   func(*memory.Store) error
}

func withOperator(o operator) func(*memory.Store) Store {
	return func(s *memory.Store) Store {
		box := o
		box.Store = s
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return &box }}
	}
}

func (o *operator) Discard(ctx context.Context, t backends.DeadTarget) (int, error) {
	if o.discard != nil {
		return o.discard(o.Store, t)
	}
	return o.Store.Discard(ctx, t)
}

func (o *operator) Backlog(ctx context.Context) (backends.Backlog, error) {
	b, err := o.Store.Backlog(ctx)
	if o.backlog != nil {
		o.backlog(&b)
	}
	return b, err
}

func (o *operator) Watch() func(context.Context) (bool, error) {
	if o.watch == nil {
		return o.Store.Watch()
	}
	call := 0
	return func(context.Context) (bool, error) {
		call++
		return o.watch(call), nil
	}
}

func (o *operator) Purge(ctx context.Context, limit int) (int, error) {
	if o.purge == nil {
		return o.Store.Purge(ctx, limit)
	}
	return 0, o.purge(o.Store)
}
