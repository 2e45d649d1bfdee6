package forwarder

import (
	"context"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
)

// pacer wakes idle workers when the store hints at new records. It asks the
// store only while a worker waits.
type pacer struct {
	watch func(context.Context) (bool, error) // nil: the store gives no hints
	every time.Duration
	log   *limitedLog

	mu      sync.Mutex
	waiting int
	wanted  chan struct{} // holds one token while someone waits
	woken   chan struct{}
}

func newPacer(store backends.Outbox, every time.Duration, log *limitedLog) *pacer {
	p := &pacer{every: every, log: log, wanted: make(chan struct{}, 1), woken: make(chan struct{})}
	if w, ok := store.(backends.Waker); ok {
		p.watch = w.Watch()
	}
	return p
}

// run asks for hints until ctx ends, under calls.
func (p *pacer) run(ctx, calls context.Context) {
	if p.watch == nil {
		return
	}
	wait := retryWait{}
	hinted := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wanted:
		}
		call, cancel := context.WithTimeoutCause(calls, storeTimeout, errReadTimeout)
		hint, err := p.watch(call)
		cancel()
		switch {
		case err != nil:
			p.log.warn(ctx, "the store could not be asked for new records", err)
			sleep(ctx, wait.next())
		case hint:
			hinted = time.Now()
			p.wake()
		}
		if err == nil {
			wait = retryWait{}
		}
		sleep(ctx, p.pause(time.Since(hinted)))
		p.ask()
	}
}

// pause is how long to wait before the store is asked again. What has been quiet
// for a while may wait a little longer to be noticed, and costs much less.
func (p *pacer) pause(silence time.Duration) time.Duration {
	switch {
	case silence > 10*time.Second:
		return 8 * p.every
	case silence > time.Second:
		return 4 * p.every
	}
	return p.every
}

// ask puts a token in wanted if someone waits.
func (p *pacer) ask() {
	p.mu.Lock()
	waiting := p.waiting > 0
	p.mu.Unlock()
	if !waiting {
		return
	}
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

func (p *pacer) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.woken)
	p.woken = make(chan struct{})
}

// hints returns a channel that is closed at the next hint. The worker calls it
// before it reads, so that a hint between the read and the wait is not lost.
func (p *pacer) hints() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.woken
}

// wait returns at a hint, at a change of the lease, after at most d, or when ctx
// ends.
func (p *pacer) wait(ctx context.Context, hints, changed <-chan struct{}, d time.Duration) {
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	p.ask()
	timer := time.NewTimer(d)
	select {
	case <-ctx.Done():
	case <-hints:
	case <-changed:
	case <-timer.C:
	}
	timer.Stop()
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
}
