package forwarder_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/forwarder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store, a broker that does as it is told, and forwarders over them,
// in a bubble of its own time.
type world struct {
	*testing.T
	store  *memory.Store
	box    backends.Outbox // what forwarders get
	broker *fake
	logs   *strings.Builder
	logMu  sync.Mutex
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, run func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := memory.New(memory.Config{})
		require.NoError(t, err)
		run(&world{T: t, store: s, box: s, broker: &fake{}, logs: &strings.Builder{}})
	})
}

func (w *world) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.logs.Write(p)
}

func (w *world) logText() string {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.logs.String()
}

func (w *world) publish(topic, aggregate string, names ...string) {
	w.Helper()
	tx := w.store.Begin()
	for _, name := range names {
		m := message.NewMessage(watermill.NewUUID(), []byte(name))
		backends.SetAggregate(m, aggregate)
		require.NoError(w, w.store.Publisher(tx).Publish(topic, m))
	}
	require.NoError(w, tx.Commit())
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// running is a forwarder that runs.
type running struct {
	w    *world
	stop context.CancelFunc
	done chan error
}

func (w *world) start(cfg forwarder.Config) *running {
	w.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	f, err := forwarder.New(w.box, w.broker, cfg)
	require.NoError(w, err)
	ctx, stop := context.WithCancel(w.Context())
	r := &running{w: w, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- f.Run(ctx) }()
	return r
}

// end stops a forwarder and returns what Run returned and how long that took.
func (r *running) end() (time.Duration, error) {
	start := time.Now()
	r.stop()
	err := <-r.done
	return time.Since(start), err
}

// after lets time pass and everything that happens by then happen.
func (w *world) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *world) backlog() backends.Backlog {
	w.Helper()
	b, err := w.store.Backlog(context.WithoutCancel(w.Context()))
	require.NoError(w, err)
	return b
}

func (w *world) dead() []backends.DeadLetter {
	w.Helper()
	d, err := w.store.Dead(context.WithoutCancel(w.Context()), backends.DeadFilter{Limit: 10_000})
	require.NoError(w, err)
	return d
}

// fake is a broker. say decides on each record; nil accepts all.
type fake struct {
	mu       sync.Mutex
	accepted []backends.Record
	calls    []call
	say      func(r backends.Record) error
	delay    time.Duration                   // each call takes so long, or until its ctx ends
	hook     func(ctx context.Context) error // called first
}

type call struct {
	at      time.Time
	topics  map[string]int
	left    time.Duration // until the deadline
	records int
}

func (f *fake) Publish(ctx context.Context, records []backends.Record) error {
	f.mu.Lock()
	say, delay, hook := f.say, f.delay, f.hook
	c := call{at: time.Now(), topics: map[string]int{}, records: len(records)}
	for _, r := range records {
		c.topics[r.Topic]++
	}
	if d, ok := ctx.Deadline(); ok {
		c.left = time.Until(d)
	}
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &backends.PartialError{}
	stopped := map[string]bool{}
	for i, r := range records {
		var err error
		if say != nil {
			err = say(r)
		}
		switch {
		case stopped[r.Aggregate] && r.Aggregate != "":
			out.Failures = append(out.Failures, backends.Failure{Index: i, State: backends.NotSent, Err: errors.New("behind")})
		case err != nil:
			stopped[r.Aggregate] = true
			out.Failures = append(out.Failures, backends.Failure{Index: i, State: backends.Rejected, Err: err})
		default:
			f.accepted = append(f.accepted, r)
		}
	}
	if len(out.Failures) > 0 {
		return out
	}
	return nil
}

func (f *fake) Close(context.Context) error { return nil }

func (f *fake) set(change func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// got lists the payloads of an aggregate that were accepted, repeats and all.
func (f *fake) got(aggregate string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.accepted {
		if r.Aggregate == aggregate {
			out = append(out, string(r.Payload))
		}
	}
	return out
}

// firsts is got without repeats.
func (f *fake) firsts(aggregate string) []string {
	var out []string
	for _, p := range f.got(aggregate) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func (f *fake) count() (calls, accepted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls), len(f.accepted)
}

// shaky is an outbox whose parts can be made to fail.
type shaky struct {
	*memory.Store
	mu         sync.Mutex
	lease      func() error
	read       func() error
	settle     func() error
	watch      func() error
	reads      int
	watches    int
	heartbeats int
	settles    int
}

func (s *shaky) ask(n *int, f *func() error) error {
	s.mu.Lock()
	*n++
	say := *f
	s.mu.Unlock()
	if say != nil {
		return say()
	}
	return nil
}

func (s *shaky) set(change func(s *shaky)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *shaky) counts() (reads, watches, heartbeats, settles int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.watches, s.heartbeats, s.settles
}

func (s *shaky) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if err := s.ask(&s.heartbeats, &s.lease); err != nil {
		return backends.Lease{}, err
	}
	return s.Store.Lease(ctx, owner, ttl)
}

func (s *shaky) Watch() func(ctx context.Context) (bool, error) {
	watch := s.Store.Watch()
	return func(ctx context.Context) (bool, error) {
		if err := s.ask(&s.watches, &s.watch); err != nil {
			return false, err
		}
		return watch(ctx)
	}
}

func (s *shaky) Reader() backends.Reader { return &shakyReader{s.Store.Reader(), s} }

type shakyReader struct {
	backends.Reader
	s *shaky
}

func (r *shakyReader) Read(ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
	if err := r.s.ask(&r.s.reads, &r.s.read); err != nil {
		return nil, err
	}
	return r.Reader.Read(ctx, l, w)
}

func (r *shakyReader) Settle(ctx context.Context, l backends.Lease, o []backends.Outcome) error {
	if err := r.s.ask(&r.s.settles, &r.s.settle); err != nil {
		return err
	}
	return r.Reader.Settle(ctx, l, o)
}

// plain hides every optional ability of a store.
type plain struct{ backends.Outbox }
