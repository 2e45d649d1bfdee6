package forwarder_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/forwarder"
)

type ctxKey string

// story is what hooks were told, and under which contexts.
type story struct {
	mu       sync.Mutex
	turns    int
	open     map[int]int // turn → records in hand
	empty    int
	wrong    []string // hooks that did not get the context they should
	owned    map[int]bool
	purges   int
	purged   int
	logged   []string
	released int
}

func (s *story) expect(ctx context.Context, hook string, keys ...ctxKey) {
	for _, k := range keys {
		if ctx.Value(k) == nil {
			s.wrong = append(s.wrong, hook+" without "+string(k))
		}
	}
}

func (s *story) hooks() forwarder.Hooks {
	locked := func(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }
	return forwarder.Hooks{
		Run: func(ctx context.Context) context.Context { return context.WithValue(ctx, ctxKey("run"), true) },
		Read: func(ctx context.Context, records []backends.Record, _ time.Duration, _ error) (out context.Context) {
			locked(func() {
				s.expect(ctx, "Read", "run")
				if len(records) == 0 {
					s.empty++
					return
				}
				s.turns++
				s.open[s.turns] = len(records)
				out = context.WithValue(ctx, ctxKey("turn"), s.turns)
			})
			return out
		},
		Publish: func(ctx context.Context, _ []backends.Record) context.Context {
			locked(func() { s.expect(ctx, "Publish", "run", "turn") })
			return context.WithValue(ctx, ctxKey("publish"), true)
		},
		Published: func(ctx context.Context, _ []backends.Record, _ time.Duration, _ error) {
			locked(func() { s.expect(ctx, "Published", "run", "turn", "publish") })
		},
		Settled: func(ctx context.Context, outcomes []backends.Outcome, _ error) {
			locked(func() {
				s.expect(ctx, "Settled", "run", "turn")
				s.open[ctx.Value(ctxKey("turn")).(int)] -= len(outcomes)
			})
		},
		Done: func(ctx context.Context) {
			locked(func() {
				turn := ctx.Value(ctxKey("turn")).(int)
				if n := s.open[turn]; n != 0 {
					s.wrong = append(s.wrong, "Done with records in hand")
				}
				delete(s.open, turn)
			})
		},
		Leased: func(_ context.Context, l backends.Lease, _ error) {
			locked(func() {
				for _, sh := range l.Shards {
					s.owned[sh.Shard] = true
				}
			})
		},
		Released: func(_ context.Context, l backends.Lease, _ error) {
			locked(func() {
				s.released++
				for _, sh := range l.Shards {
					delete(s.owned, sh.Shard)
				}
			})
		},
		Purged: func(_ context.Context, n int, _ error) { locked(func() { s.purges++; s.purged += n }) },
		Log: func(ctx context.Context, r *backends.Record) context.Context {
			return context.WithValue(ctx, ctxKey("message"), r.MessageID)
		},
	}
}

// keyed notes the value under which a line was logged.
type keyed struct {
	slog.Handler
	s *story
}

func (keyed) Enabled(context.Context, slog.Level) bool { return true }

func (k keyed) Handle(ctx context.Context, r slog.Record) error {
	if id, ok := ctx.Value(ctxKey("message")).(string); ok {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		k.s.logged = append(k.s.logged, id)
	}
	return nil
}

// Everything that becomes of what was read is told under the context that Read
// gave, probes of a topic that was held back included, and Done comes last.
func TestHooks_OneContextFromReadToDone(t *testing.T) {
	inWorld(t, func(w *world) {
		store, err := memory.New(memory.Config{Retention: time.Second})
		require.NoError(w, err)
		w.store, w.box = store, store
		s := &story{open: map[int]int{}, owned: map[int]bool{}}
		down := true
		w.broker.say = func(r backends.Record) error {
			switch {
			case r.Topic == "down" && down:
				return backends.Unavailable(errors.New("down"))
			case string(r.Payload) == "bad":
				return backends.Permanent(errors.New("bad"))
			}
			return nil
		}
		w.broker.hook = func(ctx context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.expect(ctx, "the broker", "run", "turn", "publish")
			return nil
		}
		r := w.start(forwarder.Config{Hooks: s.hooks(), Logger: slog.New(keyed{slog.DiscardHandler, s})})
		w.publish("t", "x", numbers(1, 20)...)
		w.publish("down", "y", numbers(1, 3)...)
		w.publish("t", "z", "bad")
		w.after(10 * time.Second)
		w.broker.set(func(*fake) { down = false })
		w.after(2 * time.Minute)
		_, err = r.end()
		require.NoError(w, err)
		require.Equal(w, numbers(1, 3), w.broker.got("y"))
		require.Empty(w, s.wrong)
		require.Empty(w, s.open)
		require.Greater(w, s.turns, 3)
		require.Positive(w, s.empty)
		require.Positive(w, s.purges)
		require.Equal(w, 23, s.purged)
		require.Positive(w, s.released)
		require.Empty(w, s.owned)
		require.Equal(w, []string{w.deadID(store)}, s.logged)
	})
}

func (w *world) deadID(store *memory.Store) string {
	w.Helper()
	dead, err := store.Dead(context.WithoutCancel(w.Context()), backends.DeadFilter{})
	require.NoError(w, err)
	require.Len(w, dead, 1)
	return dead[0].MessageID
}
