package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// generation is a publisher with its lanes. One of a factory is replaced when a
// call hangs in it.
type generation struct {
	publisher message.Publisher
	lanes     []lane
}

// lane holds one token. Who publishes in the lane has it, and keeps it while a
// call hangs.
type lane struct {
	token   chan struct{}
	current atomic.Pointer[batch] // of who has the token
}

// hung reports whether a call that was given up has not returned.
func (l *lane) hung() bool {
	b := l.current.Load()
	return b != nil && b.ended()
}

func newGeneration(p message.Publisher, lanes int) *generation {
	g := &generation{publisher: p, lanes: make([]lane, lanes)}
	for i := range g.lanes {
		g.lanes[i].token = make(chan struct{}, 1)
		g.lanes[i].token <- struct{}{}
	}
	return g
}

// making is one run of the factory. Whoever needs its publisher waits for it, as
// long as that caller's context lasts.
type making struct {
	done chan struct{}
	err  error // when done
}

// begin returns the publisher to use. The caller owes wg.Done.
func (b *Broker) begin(ctx context.Context) (*generation, error) {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return nil, fmt.Errorf("pubsub: %w", backends.ErrClosed)
		}
		if g := b.current; g != nil {
			b.wg.Add(1)
			b.mu.Unlock()
			return g, nil
		}
		if b.making == nil {
			b.making = &making{done: make(chan struct{})}
			b.wg.Go(b.makeOne)
		}
		m := b.making
		b.mu.Unlock()
		select {
		case <-m.done:
			if m.err != nil {
				return nil, backends.Unavailable(fmt.Errorf("pubsub: make a publisher: %w", m.err))
			}
		case <-ctx.Done():
			return nil, backends.Unavailable(fmt.Errorf("pubsub: the factory has not returned: %w", context.Cause(ctx)))
		}
	}
}

// makeOne runs the factory, which may take its time: no lock is held.
func (b *Broker) makeOne() {
	p, err := b.runFactory()
	b.mu.Lock()
	m, late := b.making, b.closed
	b.making = nil
	if m.err = err; err == nil && !late {
		b.current = newGeneration(p, b.cfg.Lanes)
	}
	b.mu.Unlock()
	close(m.done)
	if err == nil && late {
		_ = p.Close() // nobody will use it
	}
}

func (b *Broker) runFactory() (p message.Publisher, err error) {
	defer recovered("factory", &err)
	if p, err = b.make(); err == nil && p == nil {
		err = errors.New("the factory returned no publisher")
	}
	return p, err
}

// replace drops a publisher in which a call hangs, if another can be made.
func (b *Broker) replace(g *generation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.make == nil || b.current != g {
		return
	}
	b.current = nil
	b.wg.Go(func() { _ = g.publisher.Close() }) // it is dropped either way
}
