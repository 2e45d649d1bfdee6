// Package pubsub makes a broker of any Watermill publisher, so that every
// Watermill Pub/Sub works with the forwarder.
//
//	broker, err := pubsub.New(publisher, pubsub.Config{})
//
// A Watermill publisher answers for a call and cannot be cancelled, so messages
// go one to a call, in lanes: the records of an aggregate share a lane, within a
// lane one waits for the other, and lanes run side by side. Nothing is known of
// what a publisher hides: one that returns before the broker has answered, or
// that drops what cannot be routed, breaks the promise that nothing is lost. Set
// it up for synchronous, confirmed publishing.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Config sets a broker up. Its zero value works.
type Config struct {
	// Lanes is how many calls to the publisher may run at once. Default: 64.
	Lanes int

	// Classify may mark a publisher's error by [backends.Permanent] or
	// [backends.Unavailable]. Default: errors are left as they are, which is
	// retryable unless the publisher marks them itself. A nil result counts for
	// nothing. It may be called by several goroutines at once.
	Classify func(error) error

	// ClosePublisher makes Close close the publisher too. Publishers made by a
	// factory are always closed. Default: what was given stays open.
	ClosePublisher bool
}

// maxLanes bounds the goroutines of one batch.
const maxLanes = 4096

// Broker publishes through a Watermill publisher. It is safe for concurrent use.
type Broker struct {
	cfg  Config
	make func() (message.Publisher, error) // nil: current was given
	seed maphash.Seed

	mu      sync.Mutex
	closed  bool
	current *generation
	making  *making        // the factory is at work
	wg      sync.WaitGroup // calls, closings and makings under way
}

// New makes a broker of a publisher, which stays the caller's unless
// ClosePublisher is set. It starts nothing.
func New(publisher message.Publisher, cfg Config) (*Broker, error) {
	if publisher == nil {
		return nil, errors.New("pubsub: the publisher is nil")
	}
	b, err := newBroker(cfg)
	if err != nil {
		return nil, err
	}
	b.current = newGeneration(publisher, b.cfg.Lanes)
	return b, nil
}

// NewFactory makes a broker that makes its publisher when it needs one, and
// another when a call hangs: some publishers never recover from a connection
// that died under them. The factory runs in a goroutine of its own, one at a
// time; whoever needs its publisher waits for it no longer than its context lasts.
func NewFactory(factory func() (message.Publisher, error), cfg Config) (*Broker, error) {
	if factory == nil {
		return nil, errors.New("pubsub: the factory is nil")
	}
	b, err := newBroker(cfg)
	if err != nil {
		return nil, err
	}
	b.make = factory
	return b, nil
}

func newBroker(cfg Config) (*Broker, error) {
	if cfg.Lanes == 0 {
		cfg.Lanes = 64
	}
	if cfg.Lanes < 1 || cfg.Lanes > maxLanes {
		return nil, fmt.Errorf("pubsub: Lanes is %d, allowed is 1 to %d", cfg.Lanes, maxLanes)
	}
	return &Broker{cfg: cfg, seed: maphash.MakeSeed()}, nil
}

// Why records are not sent.
var (
	errHung   = backends.Unavailable(errors.New("pubsub: an earlier call to the publisher has not returned"))
	errTopic  = backends.Unavailable(errors.New("pubsub: the topic cannot be reached"))
	errBehind = errors.New("pubsub: an earlier record of the aggregate was not accepted")
)

// Publish implements [backends.Broker]. When ctx ends, the call under way in each
// lane is unknown and what follows it in the lane is not sent. The lane stays
// shut until that call returns.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	g, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer b.wg.Done()
	batch := newBatch(records)
	byLane := map[int][]int{}
	for i := range records {
		key := records[i].Aggregate
		if key == "" {
			key = records[i].MessageID
		}
		n := int(maphash.String(b.seed, key) % uint64(len(g.lanes)))
		byLane[n] = append(byLane[n], i)
	}
	var lanes sync.WaitGroup
	for n, indexes := range byLane {
		b.wg.Add(1)
		lanes.Add(1)
		go func() {
			defer b.wg.Done()
			defer lanes.Done()
			b.lane(ctx, g, &g.lanes[n], batch, indexes)
		}()
	}
	done := make(chan struct{})
	go func() { lanes.Wait(); close(done) }() // ends with the lanes
	select {
	case <-done:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // the lanes may have seen it first
		if hung := batch.close(backends.Unavailable(context.Cause(ctx))); len(hung) > 0 {
			b.replace(g)
		}
	}
	return batch.answer()
}

// lane publishes the records of one lane, one by one.
func (b *Broker) lane(ctx context.Context, g *generation, l *lane, batch *batch, indexes []int) {
	if l.hung() {
		batch.refuse(indexes, errHung)
		return
	}
	select {
	case <-l.token:
	case <-ctx.Done():
		return // the batch is closed: not sent
	}
	l.current.Store(batch)
	defer func() {
		l.current.Store(nil)
		l.token <- struct{}{}
	}()
	for _, i := range indexes {
		topic, m, ok := batch.start(i)
		if !ok {
			return
		}
		if m == nil {
			continue // behind a failure
		}
		m.SetContext(ctx)
		batch.end(i, b.call(g.publisher, topic, m))
	}
}

// call publishes a message. A panic of the publisher becomes an error, and so
// does one of Classify.
func (b *Broker) call(p message.Publisher, topic string, m *message.Message) (err error) {
	defer recovered("publisher", &err)
	err = p.Publish(topic, m)
	if err != nil && b.cfg.Classify != nil {
		if c := b.cfg.Classify(err); c != nil { // it classes failures, it cannot undo them
			err = c
		}
	}
	return err
}

// recovered is deferred. It names the panic's type only: its text may hold what
// was to be published.
func recovered(what string, err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("pubsub: the %s panicked with a value of type %T", what, v)
	}
}

// Close implements [backends.Broker]. It waits for calls under way until ctx
// ends, then gives them up. A publisher of its own is closed after the calls,
// since not every publisher may be closed during one, or when ctx ends.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	g := b.current
	b.mu.Unlock()
	calls, done := make(chan struct{}), make(chan error, 1)
	go func() { b.wg.Wait(); close(calls) }() // ends with the publisher's calls
	go func() {
		select {
		case <-calls:
		case <-ctx.Done(): // closing it may end the calls that hang
		}
		var err error
		if g != nil && (b.make != nil || b.cfg.ClosePublisher) {
			err = g.publisher.Close()
		}
		<-calls
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("pubsub: calls to the publisher have not returned: %w", context.Cause(ctx))
	}
}
