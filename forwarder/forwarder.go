package forwarder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outmill/outmill/backends"
)

// ErrRunning comes from Run when it is already running.
var ErrRunning = errors.New("forwarder: already running")

// Forwarder moves records from an outbox to a broker.
type Forwarder struct {
	store    backends.Outbox
	broker   backends.Broker // with its middleware around it
	cfg      Config
	judge    judge
	hooks    watched
	log      *limitedLog
	accepted atomic.Int64 // records that the broker has accepted
	running  atomic.Bool
}

// New makes a forwarder. It reports every fault of the configuration at once and
// starts nothing. It owns neither the store nor the broker and closes neither.
func New(store backends.Outbox, broker backends.Broker, cfg Config) (*Forwarder, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if store == nil {
		err = errors.Join(errors.New("forwarder: the store is nil"), err)
	}
	if broker == nil {
		err = errors.Join(errors.New("forwarder: the broker is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	for i := len(cfg.Middleware) - 1; i >= 0; i-- {
		if broker = cfg.Middleware[i](broker); broker == nil {
			return nil, fmt.Errorf("forwarder: Middleware[%d] returned nil, it must return a broker", i)
		}
	}
	f := &Forwarder{
		store: store, broker: broker, cfg: cfg, judge: judge{cfg: cfg, suspects: newSuspects()},
		log:   newLimitedLog(cfg.Logger),
		hooks: watched{hooks: cfg.Hooks, log: cfg.Logger},
	}
	return f, nil
}

func (f *Forwarder) breakerChanged(topic string, err error) {
	if err != nil {
		f.log.Warn("a topic cannot be reached and is held back", "topic", topic, "error", brief(err))
	} else {
		f.log.Info("a topic can be reached again", "topic", topic)
	}
	f.hooks.breaker(topic, err)
}

// run is what one call of Run uses.
type run struct {
	keeper   *keeper
	pacer    *pacer
	breakers *breakers
	wg       sync.WaitGroup // workers and probes

	// calls is what calls of the store run under: a stop does not cut them short,
	// the end of Run does, since the store may be closed then.
	calls    context.Context
	endCalls context.CancelCauseFunc
}

// Run moves records until ctx ends. It blocks.
//
// It first checks the store and returns that error if it cannot be used. From
// then on it outlives failures of the store and of the broker: it tries again,
// at growing intervals, and says so in the log.
//
// When ctx ends it stops reading, lets what is being published come to its end,
// settles it, gives its shards back so that another forwarder takes over at
// once, and returns nil. If that takes longer than Config.Shutdown it cuts
// publishing short, settles what is known by then, and returns an error that
// says what was left. Nothing is lost by that: what was not settled is sent again.
//
// Run may be called again after it has returned, but not twice at once
// ([ErrRunning]).
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer f.running.Store(false)
	ctx = f.hooks.run(ctx)
	if err := f.check(ctx); err != nil {
		return err
	}

	owner := f.cfg.Name + "-" + rand.Text()[:10]
	r := &run{
		keeper: newKeeper(f.store, owner, f.cfg, f.hooks, f.log),
		pacer:  newPacer(f.store, f.cfg.PollMin, f.log),

		breakers: newBreakers(f.breakerChanged),
	}
	f.log.InfoContext(ctx, "the forwarder starts", "owner", owner, "workers", f.cfg.Workers, "batch", f.cfg.Batch,
		"lease", f.cfg.Lease, "max_attempts", f.cfg.MaxAttempts)
	defer f.log.InfoContext(ctx, "the forwarder has stopped", "owner", owner)
	r.calls, r.endCalls = context.WithCancelCause(context.WithoutCancel(ctx))
	defer r.endCalls(errShutdownTimeout)
	hard, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	stopAside := f.aside(hard, r)
	for i := range f.cfg.Workers {
		w := f.newWorker(r, i)
		r.wg.Go(func() { w.loop(ctx, hard) })
	}
	<-ctx.Done()

	left := f.drain(r, cut)
	if !stopAside(f.cfg.grace()) {
		left = errors.Join(left, errors.New("forwarder: the store did not answer while stopping"))
	}
	return errors.Join(left, f.giveBack(r))
}

// check returns at once when ctx ends.
func (f *Forwarder) check(ctx context.Context) error {
	call, cancel := context.WithTimeoutCause(ctx, storeTimeout, errReadTimeout)
	defer cancel()
	if err := f.store.Check(call); err != nil && ctx.Err() == nil {
		return fmt.Errorf("forwarder: the store cannot be used: %w", err)
	}
	return nil
}

// aside starts what runs beside the workers. It goes on while they drain, so
// that the lease lasts; stop ends it and reports whether it ended in time.
func (f *Forwarder) aside(hard context.Context, r *run) (stop func(limit time.Duration) bool) {
	ctx, cancel := context.WithCancel(hard)
	var wg sync.WaitGroup
	wg.Go(func() { r.keeper.run(ctx, r.calls) })
	wg.Go(func() { r.pacer.run(ctx, r.calls) })
	wg.Go(func() { f.purge(ctx, r) })
	return func(limit time.Duration) bool {
		cancel()
		if within(&wg, limit/2) {
			return true
		}
		r.endCalls(errShutdownTimeout)
		within(&wg, limit/2)
		return false
	}
}

// drain waits for the workers: as long as Shutdown allows, then, with publishing
// cut short, for a little longer, then with calls of the store cut short as well.
func (f *Forwarder) drain(r *run, cut context.CancelCauseFunc) error {
	if within(&r.wg, f.cfg.Shutdown-7*f.cfg.grace()/2) {
		return nil
	}
	cut(errShutdownTimeout)
	if within(&r.wg, f.cfg.grace()) {
		return fmt.Errorf("forwarder: publishing was cut short after %v; what was not settled will be sent again", f.cfg.Shutdown)
	}
	r.endCalls(errShutdownTimeout)
	if within(&r.wg, f.cfg.grace()/2) {
		return fmt.Errorf("forwarder: the store did not answer within %v; what was not settled will be sent again", f.cfg.Shutdown)
	}
	return fmt.Errorf("forwarder: the broker did not return within %v; what was not settled will be sent again", f.cfg.Shutdown)
}

// giveBack releases the lease, so that others need not wait for its end.
func (f *Forwarder) giveBack(r *run) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), f.cfg.grace(), errReleaseTimeout)
	defer cancel()
	if err := r.keeper.release(ctx); err != nil {
		return fmt.Errorf("forwarder: the shards could not be given back; others take them over when the lease ends: %w", err)
	}
	return nil
}

// grace is how long each of the last steps of a stop may take once it has
// to hurry: settling, ending what runs aside, giving the shards back.
func (c Config) grace() time.Duration { return min(c.Shutdown/6, 5*time.Second) }

// within reports whether a group ends within a limit.
func within(wg *sync.WaitGroup, limit time.Duration) bool {
	done := make(chan struct{})
	go func() { // ends with the group
		wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
