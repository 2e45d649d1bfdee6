package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
)

// How long a probe's questions may take, and for how long an answer is good: probes
// of several checkers cost the servers no more than one.
const (
	pingLimit = 2 * time.Second
	pingKeep  = time.Second
)

// stuckAfter is how long heartbeats may be silent before the process counts as
// stuck: calls of the store are cut off at ten seconds, and failed heartbeats are
// heard of too.
const stuckAfter = time.Minute

// health answers probes.
type health struct {
	store  any
	broker any
	lease  time.Duration

	mu       sync.Mutex
	stopping bool
	began    time.Time
	beat     time.Time // the last heartbeat, good or bad
	goodBeat time.Time
	beatErr  error

	asking sync.Mutex // held while the servers are asked; never by the hook
	asked  time.Time
	answer error
}

func newHealth(store, broker any, lease time.Duration) *health {
	return &health{store: store, broker: broker, lease: lease, began: time.Now()}
}

// leased is a hook of the forwarder.
func (h *health) leased(_ context.Context, _ backends.Lease, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beat, h.beatErr = time.Now(), err
	if err == nil {
		h.goodBeat = h.beat
	}
}

func (h *health) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
}

// live is an error where only a restart helps. A database or broker that cannot
// be reached is no such thing.
func (h *health) live() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.beat
	if last.IsZero() {
		last = h.began
	}
	if since := time.Since(last); !h.stopping && since > stuckAfter+h.lease {
		return fmt.Errorf("no heartbeat for %v", since.Round(time.Second))
	}
	return nil
}

// ready is nil where this forwarder holds shards or would get some if there were
// any to be had, and the database and the broker answer.
func (h *health) ready(ctx context.Context) error {
	if err := h.holding(); err != nil {
		return err
	}
	h.asking.Lock()
	defer h.asking.Unlock()
	if time.Since(h.asked) < pingKeep {
		return h.answer
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingLimit)
	defer cancel()
	h.answer = errors.Join(ping(ctx, "store", h.store), ping(ctx, "broker", h.broker))
	h.asked = time.Now()
	return h.answer
}

func (h *health) holding() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopping:
		return errors.New("stopping")
	case h.goodBeat.IsZero() && h.beatErr == nil:
		return errors.New("starting: no heartbeat yet")
	case time.Since(h.goodBeat) > h.lease && h.beatErr == nil:
		return errors.New("the last heartbeat is older than the lease")
	case time.Since(h.goodBeat) > h.lease:
		return fmt.Errorf("the last good heartbeat is older than the lease: %w", h.beatErr)
	}
	return nil
}

func ping(ctx context.Context, name string, of any) error {
	p, ok := of.(backends.Pinger)
	if !ok {
		return nil
	}
	if err := p.Ping(ctx); err != nil {
		return fmt.Errorf("the %s does not answer: %w", name, err)
	}
	return nil
}
