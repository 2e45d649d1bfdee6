package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Outcome is what became of a delivery.
type Outcome string

const (
	// Processed: the handler's work is committed.
	Processed Outcome = "processed"
	// Duplicate: it was handled or taken in before.
	Duplicate Outcome = "duplicate"
	// Stale: a newer one was handled, and the policy is Latest.
	Stale Outcome = "stale"
	// Buffered: it waits for its predecessors.
	Buffered Outcome = "buffered"
	// Failed: it will be delivered again.
	Failed Outcome = "failed"
	// DeadLettered: it is among the dead letters.
	DeadLettered Outcome = "dead_lettered"
)

// Event tells of one delivery.
type Event struct {
	Message *message.Message
	Key     backends.InboxKey
	Outcome Outcome
	Reason  string // DeadLettered: one of backends' Reason constants

	Expected, Received int64         // the next sequence and this one's; 0: none
	Attempts           int           // counted failures, where it failed
	Age                time.Duration // Duplicate: since it was handled; 0: not known
	FromBuffer         bool          // it had waited
	Took               time.Duration
	Err                error
}

// Hooks are told what a consumer does. Any of them may be nil. They may be called
// by several goroutines at once, and should be quick. A panic in one is logged
// and changes nothing else.
type Hooks struct {
	// Start is called before a handler. The context it returns goes to the handler
	// and to Done; nil leaves it as it is.
	Start func(ctx context.Context, msg *message.Message, fromBuffer bool) context.Context

	// Done is called with what became of a delivery.
	Done func(ctx context.Context, e Event)

	// Gap is called for each gap that GapTimeout has passed, with what was done:
	// "adopted", "held", "skipped" or "parked".
	Gap func(w backends.InboxWaiting, resolution string)

	// Swept is called with the backlog now and then.
	Swept func(b backends.InboxBacklog, err error)

	// Purged is called with how many ids were dropped.
	Purged func(n int)

	// LateRedelivery is called for a message that was delivered again when most of
	// Retention had passed.
	LateRedelivery func(key backends.InboxKey, age, retention time.Duration)
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

func (w watched) start(ctx context.Context, msg *message.Message, fromBuffer bool) (out context.Context) {
	if w.hooks.Start == nil {
		return ctx
	}
	out = ctx // stands if the hook panics
	defer w.guard("Start")
	if c := w.hooks.Start(ctx, msg, fromBuffer); c != nil {
		out = c
	}
	return out
}

func (w watched) done(ctx context.Context, e Event) {
	if w.hooks.Done == nil {
		return
	}
	defer w.guard("Done")
	w.hooks.Done(ctx, e)
}

func (w watched) gap(waiting backends.InboxWaiting, resolution string) {
	if w.hooks.Gap == nil {
		return
	}
	defer w.guard("Gap")
	w.hooks.Gap(waiting, resolution)
}

func (w watched) swept(b backends.InboxBacklog, err error) {
	if w.hooks.Swept == nil {
		return
	}
	defer w.guard("Swept")
	w.hooks.Swept(b, err)
}

func (w watched) purged(n int) {
	if w.hooks.Purged == nil {
		return
	}
	defer w.guard("Purged")
	w.hooks.Purged(n)
}

func (w watched) late(key backends.InboxKey, age, retention time.Duration) {
	if w.hooks.LateRedelivery == nil {
		return
	}
	defer w.guard("LateRedelivery")
	w.hooks.LateRedelivery(key, age, retention)
}
