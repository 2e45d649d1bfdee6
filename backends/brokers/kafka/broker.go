package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
)

// Broker publishes to a Kafka cluster. It is safe for concurrent use: each call
// of Publish has a session of its own while it runs, since a producer's sequence
// numbers in a partition must follow each other.
type Broker struct {
	cfg Config

	mu     sync.Mutex
	idle   []*session
	closed bool
	wg     sync.WaitGroup // calls under way, and clients that are being closed
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
	if err := kgo.ValidateOpts(cfg.options()...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Broker{cfg: cfg}, nil
}

// String names the kind and no secret.
func (b *Broker) String() string { return "Kafka broker" }

// GoString is String.
func (b *Broker) GoString() string { return b.String() }

// Publish implements [backends.Broker].
//
// Refused for good are records for a topic that does not exist or has no valid
// name, larger than MaxMessageBytes or the topic's limit, or that the topic's
// settings do not allow. A cluster or partition that cannot be reached, and a
// user who may not write, are unavailable.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	session, err := b.take(ctx)
	if err != nil {
		return err
	}
	p := newPublish(b.cfg, session, records)
	defer func() { b.giveBack(session, p.sound) }()
	p.run(ctx)
	return p.answer()
}

// take returns a client for the caller alone, who must give it back.
func (b *Broker) take(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("kafka: %w", backends.ErrClosed)
	}
	b.wg.Add(1) // until it is given back
	if n := len(b.idle); n > 0 {
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()
	s, err := newSession(b.cfg)
	if err != nil {
		b.wg.Done()
		return nil, err
	}
	if err := s.identify(ctx); err != nil {
		b.giveBack(s, false)
		return nil, err
	}
	return s, nil
}

// giveBack keeps a sound session for the next call. One that has met an unknown
// outcome is dropped: it cannot tell which sequence number is next.
func (b *Broker) giveBack(s *session, sound bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.wg.Done()
	if sound && !b.closed {
		b.idle = append(b.idle, s)
		return
	}
	b.wg.Go(s.client.Close)
}

// Ping implements [backends.Pinger].
func (b *Broker) Ping(ctx context.Context) error {
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	err = s.ping(ctx)
	b.giveBack(s, err == nil)
	return err
}

// Close implements [backends.Broker]. It waits for calls of Publish that are
// under way and for every connection to be closed, until ctx ends.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, s := range b.idle {
		b.wg.Go(s.client.Close)
	}
	b.idle = nil
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }() // ends with the calls and clients
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kafka: connections were still open: %w", context.Cause(ctx))
	}
}
