package shop

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/outmill/outmill/backends"
)

// ErrDied is what a dying store answers from its death on.
var ErrDied = errors.New("the process is dead")

// Dying is a store in the hands of a process that is killed in the middle of
// things: it settles so many records, and when the next batch has been sent,
// it answers nothing any more and gives nothing back.
type Dying struct {
	backends.Outbox
	After   int                // records
	Kill    context.CancelFunc // ends the forwarder
	Settled atomic.Int64

	dead atomic.Bool
}

// Reader implements backends.Outbox.
func (d *Dying) Reader() backends.Reader { return &dyingReader{d.Outbox.Reader(), d} }

// Lease implements backends.Outbox.
func (d *Dying) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if d.dead.Load() {
		return backends.Lease{}, ErrDied
	}
	return d.Outbox.Lease(ctx, owner, ttl)
}

// Release implements backends.Outbox. The dead give nothing back, so the next
// forwarder has to wait for the end of the lease.
func (d *Dying) Release(context.Context, backends.Lease) error { return ErrDied }

type dyingReader struct {
	backends.Reader
	store *Dying
}

func (r *dyingReader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if r.store.dead.Load() {
		return nil, ErrDied
	}
	return r.Reader.Read(ctx, lease, want)
}

func (r *dyingReader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	if r.store.Settled.Load() >= int64(r.store.After) {
		r.store.dead.Store(true)
		r.store.Kill()
	}
	if r.store.dead.Load() {
		return ErrDied
	}
	err := r.Reader.Settle(ctx, lease, outcomes)
	if err == nil {
		r.store.Settled.Add(int64(len(outcomes)))
	}
	return err
}
