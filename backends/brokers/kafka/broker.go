package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
)

// Broker publishes to a Kafka cluster. It is safe for concurrent use: each call
// of Publish has a client of its own while it runs, since a flush of a shared
// one would send another call's wave in parts.
type Broker struct {
	cfg Config

	mu     sync.Mutex
	idle   []*kgo.Client
	closed bool
	wg     sync.WaitGroup // clients that are being closed
}

var (
	_ backends.Broker = (*Broker)(nil)
	_ backends.Pinger = (*Broker)(nil)
)

// pingLimit is how long a new client may take to find a broker: when none is
// there, the answer should come soon.
const pingLimit = 3 * time.Second

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
	client, err := b.take(ctx)
	if err != nil {
		return err
	}
	p := newPublish(b.cfg, client, records)
	p.run(ctx)
	b.giveBack(client, p.sound)
	return p.answer()
}

// take returns a client for the caller alone.
func (b *Broker) take(ctx context.Context) (*kgo.Client, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("kafka: %w", backends.ErrClosed)
	}
	if n := len(b.idle); n > 0 {
		client := b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.mu.Unlock()
		return client, nil
	}
	b.mu.Unlock()
	client, err := kgo.NewClient(b.cfg.options()...) // fresh: clients sort their options in place
	if err != nil {
		return nil, fmt.Errorf("kafka: make a client: %w", err)
	}
	if err := reach(ctx, client); err != nil {
		b.giveBack(client, false)
		return nil, err
	}
	return client, nil
}

func reach(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, errors.New("no broker answered in time"))
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return backends.Unavailable(fmt.Errorf("kafka: no broker can be reached: %w", err))
	}
	return nil
}

// giveBack keeps a sound client for the next call. One that has met an unknown
// outcome is dropped: its producer may never work again.
func (b *Broker) giveBack(client *kgo.Client, sound bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sound && !b.closed {
		b.idle = append(b.idle, client)
		return
	}
	b.wg.Go(client.Close)
}

// Ping implements [backends.Pinger].
func (b *Broker) Ping(ctx context.Context) error {
	client, err := b.take(ctx)
	if err != nil {
		return err
	}
	err = reach(ctx, client)
	b.giveBack(client, err == nil)
	return err
}

// Close implements [backends.Broker]. Calls of Publish that are under way come
// to their end; their clients are closed then.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, client := range b.idle {
		b.wg.Go(client.Close)
	}
	b.idle = nil
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }() // ends with the clients
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kafka: connections were still open: %w", context.Cause(ctx))
	}
}
