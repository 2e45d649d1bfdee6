package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/outmill/outmill/backends"
)

// Broker publishes to RabbitMQ. It is safe for concurrent use: each call of
// Publish has a connection of its own while it runs.
type Broker struct {
	cfg Config

	mu     sync.Mutex
	idle   []*session
	live   map[*session]struct{} // idle or in use
	closed bool
	wg     sync.WaitGroup // calls under way, dials, and connections that are being closed

	dialing context.Context // ends when Close gives up
	giveUp  context.CancelFunc
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
	b := &Broker{cfg: cfg, live: map[*session]struct{}{}}
	b.dialing, b.giveUp = context.WithCancel(context.Background())
	return b, nil
}

// String names the kind and no secret.
func (b *Broker) String() string { return "RabbitMQ broker" }

// GoString is String.
func (b *Broker) GoString() string { return b.String() }

// Publish implements [backends.Broker].
//
// Refused for good are records that no queue gets (see HoldUnroutable), whose
// exchange does not exist, or that are too large or not possible in AMQP.
// A queue that is full and rejects, a connection that the server has blocked, a
// user who may not write and a server that cannot be reached are unavailable.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errors.New("rabbitmq: publishing took too long"))
	defer cancel()
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	p := newPublish(b.cfg, s, records)
	b.giveBack(s, p.run(ctx))
	return p.answer()
}

// take returns a connection for the caller alone, who must give it back.
func (b *Broker) take(ctx context.Context) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("rabbitmq: %w", backends.ErrClosed)
	}
	if ctx.Err() != nil {
		return nil, backends.Unavailable(fmt.Errorf("rabbitmq: nothing was sent: %w", context.Cause(ctx)))
	}
	for n := len(b.idle); n > 0; n = len(b.idle) {
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		if !s.conn.IsClosed() {
			b.wg.Add(1) // until it is given back
			return s, nil
		}
		b.drop(s)
	}
	b.wg.Add(1)
	b.mu.Unlock()
	s, err := b.dial(ctx)
	b.mu.Lock()
	if err != nil {
		b.wg.Done()
		return nil, backends.Unavailable(fmt.Errorf("rabbitmq: no connection: %w", err))
	}
	return s, nil
}

// dial connects, for as long as ctx lasts. If that is not long enough, the
// attempt goes on up to DialTimeout, and the next call finds what comes of it:
// behind a slow line a handshake may take longer than a call has time.
func (b *Broker) dial(ctx context.Context) (*session, error) {
	type result struct {
		s   *session
		err error
	}
	done := make(chan result)
	b.wg.Go(func() {
		dialing, cancel := context.WithTimeoutCause(b.dialing, b.cfg.DialTimeout, errors.New("the handshake took too long"))
		defer cancel()
		s, err := openSession(dialing, b.cfg)
		if err == nil {
			b.mu.Lock()
			b.live[s] = struct{}{}
			b.mu.Unlock()
		}
		select {
		case done <- result{s, err}:
		case <-ctx.Done():
			if err == nil {
				b.wg.Add(1)
				b.giveBack(s, true)
			}
		}
	})
	select {
	case r := <-done:
		return r.s, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// giveBack keeps a sound connection for the next call, and closes another.
func (b *Broker) giveBack(s *session, sound bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.wg.Done()
	if sound && !b.closed {
		b.idle = append(b.idle, s)
		return
	}
	if !sound {
		s.wire.kill()
	}
	b.drop(s)
}

// drop closes a connection; the caller holds the lock.
func (b *Broker) drop(s *session) {
	b.wg.Go(func() {
		s.close()
		b.mu.Lock()
		delete(b.live, s)
		b.mu.Unlock()
	})
}

// Ping implements [backends.Pinger].
func (b *Broker) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errors.New("the server did not answer in time"))
	defer cancel()
	s, err := b.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.wire.kill)
	ch, err := s.conn.Channel()
	if err == nil {
		err = ch.Close()
	}
	sound := stop() && err == nil
	b.giveBack(s, sound)
	if !sound {
		return backends.Unavailable(fmt.Errorf("rabbitmq: the server does not answer: %w", errors.Join(err, context.Cause(ctx))))
	}
	return nil
}

// Close implements [backends.Broker]. It waits for calls of Publish that are
// under way. When ctx ends first it cuts their connections, so that they return
// soon after.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, s := range b.idle {
		b.drop(s)
	}
	b.idle = nil
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }() // ends with the calls and connections
	select {
	case <-done:
		b.giveUp()
		return nil
	case <-ctx.Done():
	}
	b.giveUp()
	b.mu.Lock()
	for s := range b.live {
		s.wire.kill()
	}
	b.mu.Unlock()
	return fmt.Errorf("rabbitmq: connections were still open: %w", context.Cause(ctx))
}
