package redis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
)

// Broker publishes to a Redis server. It is safe for concurrent use: each call of
// Publish has a connection of its own while it runs.
type Broker struct {
	cfg Config

	mu     sync.Mutex
	idle   []*session
	closed bool
	wg     sync.WaitGroup // calls under way, and connections being made or closed
}

var (
	_ backends.Broker = (*Broker)(nil)
	_ backends.Pinger = (*Broker)(nil)
)

// New makes a broker. It reports every fault of the configuration at once,
// connects to nothing and starts nothing.
func New(cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Broker{cfg: cfg}, nil
}

// String names the kind and no secret.
func (b *Broker) String() string { return "Redis broker" }

// GoString is String.
func (b *Broker) GoString() string { return b.String() }

// Publish implements [backends.Broker].
//
// Refused for good are records without a topic, larger than MaxMessageBytes, and
// those whose topic is a key that holds no stream. A server that cannot be
// reached, has no memory left, loads its data or writes nothing, and a user who
// may not write, are unavailable. A stream that does not exist is made.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	p := newPublish(b.cfg, s, records)
	stop := context.AfterFunc(ctx, s.cut)
	p.run(ctx)
	b.giveBack(s, stop() && p.sound)
	return p.answer()
}

// take returns a session for the caller alone, who must give it back.
func (b *Broker) take(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("redis: %w", backends.ErrClosed)
	}
	b.wg.Add(1) // until it is given back
	var s *session
	if n := len(b.idle); n > 0 {
		s, b.idle = b.idle[n-1], b.idle[:n-1]
	}
	b.mu.Unlock()
	if s != nil && time.Since(s.used) > fresh && s.reach(ctx) != nil {
		s.close()
		s = nil
	}
	if s != nil {
		return s, nil
	}
	s, err := open(ctx, b.cfg)
	if err != nil {
		b.wg.Done()
		return nil, err
	}
	return s, nil
}

// giveBack keeps a sound session for the next call.
func (b *Broker) giveBack(s *session, sound bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.wg.Done()
	if sound && !b.closed {
		b.idle = append(b.idle, s)
		return
	}
	b.wg.Go(s.close)
}

// Ping implements [backends.Pinger].
func (b *Broker) Ping(ctx context.Context) error {
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	err = s.reach(ctx)
	b.giveBack(s, err == nil)
	return err
}

// Close implements [backends.Broker]. It waits for calls of Publish that are
// under way and for every connection to be closed, until ctx ends.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, s := range b.idle {
		b.wg.Go(s.close)
	}
	b.idle = nil
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }() // ends with the calls and connections
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: connections were still open: %w", context.Cause(ctx))
	}
}
