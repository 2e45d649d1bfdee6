package consumer

import (
	"context"
	"sync"
	"time"
)

// keys lets one goroutine of this process work on an aggregate. Its zero value is
// ready.
type keys struct {
	mu   sync.Mutex
	held map[any]*key
}

type key struct {
	token chan struct{} // one: free
	users int
}

// lock waits for a key until ctx ends.
func (k *keys) lock(ctx context.Context, name any) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[any]*key{}
	}
	mine := k.held[name]
	if mine == nil {
		mine = &key{token: make(chan struct{}, 1)}
		mine.token <- struct{}{}
		k.held[name] = mine
	}
	mine.users++
	k.mu.Unlock()
	select {
	case <-mine.token:
		return func() {
			mine.token <- struct{}{}
			k.leave(name, mine)
		}, nil
	case <-ctx.Done():
		k.leave(name, mine)
		return nil, context.Cause(ctx)
	}
}

func (k *keys) leave(name any, mine *key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if mine.users--; mine.users == 0 {
		delete(k.held, name)
	}
}

// waits remembers since when messages have been refused, and until when an
// aggregate is left alone. Its zero value is ready.
type waits struct {
	mu    sync.Mutex
	first map[string]time.Time
	until map[any]time.Time
}

// maxWaits bounds what is remembered: what is forgotten is waited for anew.
const maxWaits = 100_000

// since is how long ago a message was first refused.
func (w *waits) since(id string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil || len(w.first) > maxWaits {
		w.first = map[string]time.Time{}
	}
	at, known := w.first[id]
	if !known {
		at = time.Now()
		w.first[id] = at
	}
	return time.Since(at)
}

func (w *waits) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.first, id)
}

// leave leaves an aggregate alone for a time.
func (w *waits) leave(name any, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.until == nil || len(w.until) > maxWaits {
		w.until = map[any]time.Time{}
	}
	w.until[name] = time.Now().Add(d)
}

// left reports whether an aggregate is to be left alone.
func (w *waits) left(name any) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	until, there := w.until[name]
	if there && time.Now().After(until) {
		delete(w.until, name)
		return false
	}
	return there
}
