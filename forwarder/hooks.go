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
	// Read is called after each look for records that found some or failed.
	Read func(ctx context.Context, records []backends.Record, took time.Duration, err error)

	// Publish is called before a batch is published. The context it returns goes
	// to the broker and to Published; nil leaves it as it is.
	Publish func(ctx context.Context, records []backends.Record) context.Context

	// Published is called with the broker's answer.
	Published func(ctx context.Context, records []backends.Record, took time.Duration, err error)

	// Settled is called after outcomes were recorded, or could not be.
	Settled func(ctx context.Context, outcomes []backends.Outcome, err error)

	// Leased is called after each heartbeat.
	Leased func(ctx context.Context, lease backends.Lease, err error)

	// Breaker is called when a topic is held back, with the reason, and when it
	// is let go, with nil.
	Breaker func(topic string, err error)
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

func (w watched) read(ctx context.Context, records []backends.Record, took time.Duration, err error) {
	if w.hooks.Read == nil || len(records) == 0 && err == nil {
		return
	}
	defer w.guard("Read")
	w.hooks.Read(ctx, records, took, err)
}

func (w watched) publish(ctx context.Context, records []backends.Record) (out context.Context) {
	if w.hooks.Publish == nil {
		return ctx
	}
	out = ctx // stands if the hook panics
	defer w.guard("Publish")
	if c := w.hooks.Publish(ctx, records); c != nil {
		out = c
	}
	return out
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
