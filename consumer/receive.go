package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// receive handles one delivery. Nil means that the broker may forget it.
func (c *Consumer) receive(msg *message.Message, h message.HandlerFunc) error {
	c.noticeAbsence()
	start := time.Now()
	ctx, d := msg.Context(), c.delivery(msg)
	e := Event{Message: msg, Key: d.InboxKey, Received: d.Sequence}
	drain := false
	unlock, err := c.keys.lock(ctx, keyOf(d))
	if err == nil {
		// The lock goes before the connection: waiting with one in hand, a busy
		// aggregate would take them all.
		ctx, drain, err = c.attempt(ctx, d, msg, h, &e)
		unlock()
	}
	if err != nil {
		e.Outcome, e.Err = Failed, err
	}
	e.Took = time.Since(start)
	c.hooks.done(ctx, e)
	if err != nil {
		c.pause(msg.Context(), e.Attempts)
		return err
	}
	if drain {
		c.drain(msg.Context(), d.InboxKey, h)
	}
	return nil
}

// keyOf is what an aggregate's deliveries have in common, or a message's.
func keyOf(d *backends.Delivery) any {
	if d.Aggregate == "" {
		return d.MessageID
	}
	return d.InboxKey
}

func (c *Consumer) attempt(ctx context.Context, d *backends.Delivery, msg *message.Message, h message.HandlerFunc, e *Event) (out context.Context, drain bool, err error) {
	order := c.order(d)
	for range 3 {
		tx, s, err := c.inbox.Begin(ctx, d, order)
		if err != nil {
			return ctx, false, fmt.Errorf("consumer: receive: %w", err)
		}
		e.Expected, e.Age = s.Expected, s.Age
		switch s.Place {
		case backends.Fresh:
			ctx, err = c.handle(ctx, tx, d, order, msg, h, e)
			return ctx, err == nil && s.Buffered > 0, err
		case backends.Moved:
			e.Outcome = Duplicate
			return ctx, s.Buffered > 0, c.commit(ctx, tx)
		case backends.Duplicate, backends.Stale:
			e.Outcome = Duplicate
			if s.Place == backends.Stale {
				e.Outcome = Stale
			}
			c.watchAge(d.InboxKey, s.Age)
			c.rollback(ctx, tx)
			return ctx, false, nil
		case backends.Ahead:
			again, err := c.ahead(ctx, tx, d, s, e)
			if !again {
				return ctx, false, err
			}
		default:
			e.Outcome, e.Reason = DeadLettered, s.Reason
			c.log.Warn("a message became a dead letter", "topic", d.Topic, "message_id", d.MessageID, "sequence", d.Sequence, "reason", s.Reason)
			return ctx, false, c.aside(ctx, tx, s.Reason)
		}
	}
	return ctx, false, ErrFull
}

// ahead is a delivery whose predecessor is missing. again asks for another look.
func (c *Consumer) ahead(ctx context.Context, tx backends.InboxTx, d *backends.Delivery, s backends.Standing, e *Event) (again bool, err error) {
	if c.cfg.Sequence == Reject && c.waits.since(d.MessageID) < c.cfg.RejectFor {
		c.rollback(ctx, tx)
		return false, fmt.Errorf("%w: sequence %d is next, this is %d", ErrAhead, s.Expected, d.Sequence)
	}
	if s.Buffered < c.cfg.BufferAggregate && c.held.Load() < int64(c.cfg.BufferTotal) {
		if err := c.aside(ctx, tx, ""); err != nil {
			return false, err
		}
		c.waits.forget(d.MessageID)
		c.held.Add(1)
		e.Outcome = Buffered
		return false, nil
	}
	c.rollback(ctx, tx)
	if s.Buffered < c.cfg.BufferAggregate && c.recount(ctx) {
		return true, nil
	}
	if c.cfg.OnFull == Refuse {
		return false, ErrFull
	}
	done, err := c.upkeep.Resolve(ctx, d.InboxKey, backends.GapFull, 0)
	if err == nil && !done {
		err = ErrFull // another works on it
	}
	if err != nil {
		return false, err
	}
	c.log.Error("an aggregate was parked: too many messages wait for one that is missing", "topic", d.Topic, "expected", s.Expected)
	return true, nil
}

// recount looks how many wait, since others may have handled what this process put
// there. It reports whether there is room.
func (c *Consumer) recount(ctx context.Context) bool {
	b, err := c.upkeep.Backlog(ctx)
	if err != nil {
		return false
	}
	c.held.Store(b.Buffered)
	return b.Buffered < int64(c.cfg.BufferTotal)
}

func (c *Consumer) aside(ctx context.Context, tx backends.InboxTx, reason string) error {
	if err := tx.SetAside(ctx, reason); err != nil {
		c.rollback(ctx, tx)
		return fmt.Errorf("consumer: set a message aside: %w", err)
	}
	return c.commit(ctx, tx)
}

// commit goes on when the delivery's context ends: cut short, its outcome would
// not be known.
func (c *Consumer) commit(ctx context.Context, tx backends.InboxTx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("consumer: commit: %w", err)
	}
	return nil
}

// rollback reports whether the connection was there to the end.
func (c *Consumer) rollback(ctx context.Context, tx backends.InboxTx) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return tx.Rollback(ctx) == nil
}

// handle runs the handler in the transaction and ends that. An error means that
// the delivery is not done with.
func (c *Consumer) handle(ctx context.Context, tx backends.InboxTx, d *backends.Delivery, order backends.InboxOrder, msg *message.Message, h message.HandlerFunc, e *Event) (context.Context, error) {
	ctx = c.hooks.start(ctx, msg, e.FromBuffer)
	err := c.call(ctx, tx, d, msg, h)
	if err != nil {
		whole := c.rollback(ctx, tx)
		return ctx, c.failed(ctx, d, order, e, err, c.blame(err, whole), false)
	}
	err = c.commit(ctx, tx)
	switch {
	case err == nil:
		e.Outcome = Processed
		c.waits.forget(d.MessageID)
		return ctx, nil
	case errors.Is(err, backends.ErrTransactionDone):
		return ctx, c.failed(ctx, d, order, e, err, true, true)
	}
	// Nobody knows whether it took effect. The next delivery will: it is handled
	// then, or a duplicate. No attempt is counted, since none may have failed.
	return ctx, err
}

// call runs the handler and appends what came of it.
func (c *Consumer) call(ctx context.Context, tx backends.InboxTx, d *backends.Delivery, msg *message.Message, h message.HandlerFunc) error {
	out := &collector{}
	hctx := withCollector(tx.Context(ctx), out)
	if c.cfg.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		hctx, cancel = context.WithTimeout(hctx, c.cfg.HandlerTimeout)
		defer cancel()
	}
	// A copy: an ack or nack by the handler must not reach the broker.
	own := msg.Copy()
	own.SetContext(hctx)
	produced, err := guarded(h, own)
	if err == nil {
		err = out.add(d.ReplyTopic, produced)
	}
	if err != nil {
		return err
	}
	return out.publish(hctx, tx)
}

// PanicError is a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

// Error names the panic's value.
func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

func guarded(h message.HandlerFunc, msg *message.Message) (out []*message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, &PanicError{p, debug.Stack()}
		}
	}()
	return h(msg)
}

// blame says whether a failure counts. A lost connection, a deadlock or a stop is
// not the message's fault; a deadline is, and may be what broke the connection.
func (c *Consumer) blame(err error, whole bool) bool {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return true
	case !whole, errors.Is(err, context.Canceled), backends.ClassOf(err) == backends.UnavailableFailure, c.inbox.Blameless(err):
		return false
	}
	return true
}

// failed records a failure, and gives the message up if that was the last.
func (c *Consumer) failed(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, e *Event, cause error, counts, undo bool) error {
	e.Err = cause
	if !counts {
		return cause
	}
	f := backends.InboxFailure{Err: cause, Limit: max(0, c.cfg.MaxAttempts), Reason: backends.ReasonAttempts, Undo: undo}
	if backends.ClassOf(cause) == backends.PermanentFailure {
		f.Limit, f.Reason = 1, backends.ReasonPermanent
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	got, err := c.inbox.Fail(call, d, order, f)
	if err != nil {
		c.log.Warn("a failure could not be recorded", "topic", d.Topic, "message_id", d.MessageID, "error", err)
		return cause
	}
	e.Attempts = got.Attempts
	switch {
	case got.Overtaken:
		e.Outcome = Duplicate
		return nil
	case got.GivenUp:
		e.Outcome, e.Reason = DeadLettered, f.Reason
		c.log.Error("a message became a dead letter", "topic", d.Topic, "message_id", d.MessageID, "sequence", d.Sequence,
			"attempts", got.Attempts, "reason", f.Reason, "error", cause)
		return nil
	}
	return cause
}

// pause keeps a broker that delivers again at once from going in circles. No
// transaction is open, and the aggregate is free.
func (c *Consumer) pause(ctx context.Context, attempts int) {
	select {
	case <-time.After(backoff(attempts)):
	case <-ctx.Done():
	}
}

func backoff(attempts int) time.Duration {
	return min(pauseMax, pauseMin<<min(max(attempts-1, 0), 16))
}

// watchAge tells of redeliveries that come close to where they would be taken for
// new.
func (c *Consumer) watchAge(key backends.InboxKey, age time.Duration) {
	if age <= c.cfg.Retention*4/5 {
		return
	}
	c.hooks.late(key, age, c.cfg.Retention)
	c.log.Warn("a message was delivered again when its id was soon to be dropped: raise Retention and Redelivery",
		"topic", key.Topic, "age", age, "retention", c.cfg.Retention)
}
