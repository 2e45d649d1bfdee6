package nats

import (
	"context"
	"fmt"
	"sync"

	"github.com/outmill/outmill/backends"
)

// Broker publishes to NATS JetStream. It is safe for concurrent use: each call of
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
func (b *Broker) String() string { return "NATS broker" }

// GoString is String.
func (b *Broker) GoString() string { return b.String() }

// Publish implements [backends.Broker].
//
// Refused for good are records whose topic is no subject or belongs to no stream,
// that are larger than the server's or the stream's limit, and whose headers the
// protocol cannot carry. A server that cannot be reached, a stream that is full
// or has no leader, and a user who may not publish are unavailable.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	p := newPublish(b.cfg, s, records)
	stop := context.AfterFunc(ctx, s.cut) // a write may hang
	p.run(ctx)
	b.giveBack(s, stop() && p.sound)
	return p.answer()
}

// take returns a session for the caller alone, who must give it back.
func (b *Broker) take(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("nats: %w", backends.ErrClosed)
	}
	b.wg.Add(1) // until it is given back
	for len(b.idle) > 0 {
		s := b.idle[len(b.idle)-1]
		b.idle = b.idle[:len(b.idle)-1]
		if !s.conn.IsClosed() {
			b.mu.Unlock()
			return s, nil
		}
	}
	b.mu.Unlock()
	s, err := b.dial(ctx)
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
		return fmt.Errorf("nats: connections were still open: %w", context.Cause(ctx))
	}
}
