package storetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

// A planted fault that shows as silence need not be waited for so long.
func init() { limit = 3 * time.Second }

// The suite is tested too: each fault planted in a sound store must make the
// cases that are named fail, and the sound store must pass them.
func TestSuite_RejectsPlantedFaults(t *testing.T) {
	for _, group := range []map[string]fault{faults, appendFaults, readFaults, operatorFaults, inboxFaults} {
		for name, f := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				catch(t, f)
			})
		}
	}
}

func catch(t *testing.T, f fault) {
	require.NotEmpty(t, f.caught)
	for _, c := range all() {
		if !strings.HasPrefix(c.name, f.caught) {
			continue
		}
		require.Empty(t, try(t, c, sound), "%s fails on a sound store", c.name)
		if failure := try(t, c, f.plant); failure != "" {
			t.Logf("%s: %s", c.name, failure)
			return
		}
	}
	t.Fatalf("no case of %q caught it", f.caught)
}

// try runs a case aside and returns its failure.
func try(t *testing.T, c testCase, plant func(*memory.Store) Store) string {
	t.Helper()
	s, err := memory.New(memory.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*limit) // a slow machine is no fault
	defer cancel()
	r := &recorder{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		c.run(newFixture(r, plant(s)))
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// recorder is a T that keeps the first failure.
type recorder struct {
	ctx     context.Context
	mu      sync.Mutex
	failure string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == "" {
		r.failure = fmt.Sprintf(format, args...)
	}
}
func (r *recorder) FailNow()                 { runtime.Goexit() }
func (r *recorder) Helper()                  {}
func (r *recorder) Logf(string, ...any)      {}
func (r *recorder) Context() context.Context { return r.ctx }

func sound(s *memory.Store) Store { return &broken{Store: s} }

// fault is a way to be wrong, and the group of cases that must find it.
type fault struct {
	caught string
	plant  func(*memory.Store) Store
}

// broken is a store whose parts can be replaced.
type broken struct {
	*memory.Store
	outbox func(*memory.Store) backends.Outbox
	begin  func(*memory.Store) Tx
}

func (b *broken) Outbox() backends.Outbox {
	if b.outbox != nil {
		return b.outbox(b.Store)
	}
	return b.Store
}

func (b *broken) Begin(context.Context) (Tx, error) {
	if b.begin != nil {
		return b.begin(b.Store), nil
	}
	return &memoryTx{b.Store.Begin(), b.Store}, nil
}

type memoryTx struct {
	*memory.Tx
	store *memory.Store
}

func (t *memoryTx) Publisher() message.Publisher   { return t.store.Publisher(t.Tx) }
func (t *memoryTx) Commit(context.Context) error   { return t.Tx.Commit() }
func (t *memoryTx) Rollback(context.Context) error { return t.Tx.Rollback() }

// brokenBox is an outbox whose readers, leases and dead letters can be replaced.
type brokenBox struct {
	*memory.Store
	reader  func(backends.Reader) backends.Reader
	lease   func(backends.Lease, time.Duration) backends.Lease
	release func(*memory.Store, backends.Lease) error
	requeue func(*memory.Store, backends.DeadTarget) (int, error)
}

func (b *brokenBox) Reader() backends.Reader {
	if b.reader != nil {
		return b.reader(b.Store.Reader())
	}
	return b.Store.Reader()
}

func (b *brokenBox) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	l, err := b.Store.Lease(ctx, owner, ttl)
	if b.lease != nil && err == nil {
		l = b.lease(l, ttl)
	}
	return l, err
}

func (b *brokenBox) Release(ctx context.Context, l backends.Lease) error {
	if b.release != nil {
		return b.release(b.Store, l)
	}
	return b.Store.Release(ctx, l)
}

func (b *brokenBox) Requeue(ctx context.Context, t backends.DeadTarget) (int, error) {
	if b.requeue != nil {
		return b.requeue(b.Store, t)
	}
	return b.Store.Requeue(ctx, t)
}

// brokenReader is a reader whose halves can be replaced.
type brokenReader struct {
	backends.Reader
	read   func(backends.Reader, context.Context, backends.Lease, backends.Want) ([]backends.Record, error)
	settle func(backends.Reader, context.Context, backends.Lease, []backends.Outcome) error
}

func (b *brokenReader) Read(ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
	if b.read != nil {
		return b.read(b.Reader, ctx, l, w)
	}
	return b.Reader.Read(ctx, l, w)
}

func (b *brokenReader) Settle(ctx context.Context, l backends.Lease, o []backends.Outcome) error {
	if b.settle != nil {
		return b.settle(b.Reader, ctx, l, o)
	}
	return b.Reader.Settle(ctx, l, o)
}

// withReader plants a fault in every reader.
func withReader(make func(r backends.Reader) *brokenReader) func(*memory.Store) Store {
	return withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, reader: func(r backends.Reader) backends.Reader { return make(r) }}
	})
}

func withBox(make func(*memory.Store) *brokenBox) func(*memory.Store) Store {
	return func(s *memory.Store) Store {
		box := make(s)
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return box }}
	}
}
