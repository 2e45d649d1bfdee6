package forwarder

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/outmill/outmill/backends"
)

// Hooks are told what a forwarder does. Any of them may be nil. They run on the
// forwarder's own goroutines, so they should be quick; they may be called by
// several at once. A panic in one is logged and changes nothing else. Records
// and outcomes are only theirs until they return.
type Hooks struct {
	// Run is called when Run begins. The forwarder works under the context it
	// returns, which must come from the one it was given; nil leaves it as it is.
	Run func(ctx context.Context) context.Context

	// Read is called after each look for records, found or not. Where it found
	// some, what becomes of them happens under the context it returns, which must
	// come from the one it was given: Publish, Settled, Done and the calls of
	// broker and store. Nil leaves it as it is.
	Read func(ctx context.Context, records []backends.Record, took time.Duration, err error) context.Context

	// Publish is called before a batch is published. The context it returns goes
	// to the broker and to Published; nil leaves it as it is.
	Publish func(ctx context.Context, records []backends.Record) context.Context

	// Published is called with the broker's answer.
	Published func(ctx context.Context, records []backends.Record, took time.Duration, err error)

	// Settled is called after outcomes were recorded, or could not be.
	Settled func(ctx context.Context, outcomes []backends.Outcome, err error)

	// Done is called once for each Read that found records, when the forwarder has
	// none of them in hand any more; not where a stop runs out of time.
	Done func(ctx context.Context)

	// Leased is called after each heartbeat.
	Leased func(ctx context.Context, lease backends.Lease, err error)

	// Released is called after shards were given back, or could not be.
	Released func(ctx context.Context, lease backends.Lease, err error)

	// Purged is called after each step of a purge, with how many records it removed.
	Purged func(ctx context.Context, records int, err error)

	// Breaker is called when a topic is held back, with the reason, and when it
	// is let go, with nil.
	Breaker func(topic string, err error)

	// Log is asked for the context under which something about one record is
	// logged, so that the line can name the record's trace. It is given that of
	// Read; nil leaves it as it is.
	Log func(ctx context.Context, record *backends.Record) context.Context
}

// watched calls hooks so that a panic in one stays its own fault.
type watched struct {
	hooks Hooks
	log   *slog.Logger
}

func (w watched) guard(name string) {
	if p := recover(); p != nil {
		w.log.Error("a hook panicked", "hook", name, "panic", fmt.Sprintf("%T", p))
	}
}

// within calls a hook that may give a context of its own. The one before stands
// if it gives none, or panics.
func (w watched) within(ctx context.Context, name string, hook func() context.Context) (out context.Context) {
	out = ctx
	defer w.guard(name)
	if c := hook(); c != nil {
		out = c
	}
	return out
}

func (w watched) run(ctx context.Context) context.Context {
	if w.hooks.Run == nil {
		return ctx
	}
	return w.within(ctx, "Run", func() context.Context { return w.hooks.Run(ctx) })
}

func (w watched) read(ctx context.Context, records []backends.Record, took time.Duration, err error) context.Context {
	if w.hooks.Read == nil {
		return ctx
	}
	return w.within(ctx, "Read", func() context.Context { return w.hooks.Read(ctx, records, took, err) })
}

func (w watched) publish(ctx context.Context, records []backends.Record) context.Context {
	if w.hooks.Publish == nil {
		return ctx
	}
	return w.within(ctx, "Publish", func() context.Context { return w.hooks.Publish(ctx, records) })
}

func (w watched) record(ctx context.Context, r *backends.Record) context.Context {
	if w.hooks.Log == nil {
		return ctx
	}
	return w.within(ctx, "Log", func() context.Context { return w.hooks.Log(ctx, r) })
}

func (w watched) published(ctx context.Context, records []backends.Record, took time.Duration, err error) {
	if w.hooks.Published == nil {
		return
	}
	defer w.guard("Published")
	w.hooks.Published(ctx, records, took, err)
}

func (w watched) settled(ctx context.Context, outcomes []backends.Outcome, err error) {
	if w.hooks.Settled == nil {
		return
	}
	defer w.guard("Settled")
	w.hooks.Settled(ctx, outcomes, err)
}

func (w watched) done(ctx context.Context) {
	if w.hooks.Done == nil {
		return
	}
	defer w.guard("Done")
	w.hooks.Done(ctx)
}

func (w watched) released(ctx context.Context, lease backends.Lease, err error) {
	if w.hooks.Released == nil {
		return
	}
	defer w.guard("Released")
	w.hooks.Released(ctx, lease, err)
}

func (w watched) purged(ctx context.Context, records int, err error) {
	if w.hooks.Purged == nil {
		return
	}
	defer w.guard("Purged")
	w.hooks.Purged(ctx, records, err)
}

func (w watched) leased(ctx context.Context, lease backends.Lease, err error) {
	if w.hooks.Leased == nil {
		return
	}
	defer w.guard("Leased")
	w.hooks.Leased(ctx, lease, err)
}

func (w watched) breaker(topic string, err error) {
	if w.hooks.Breaker == nil {
		return
	}
	defer w.guard("Breaker")
	w.hooks.Breaker(topic, err)
}
