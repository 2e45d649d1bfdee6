package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

const (
	sweepPage    = 1000
	sweepWorkers = 8
	purgeEvery   = time.Minute
	purgeBatch   = 1000
)

// Run does what deliveries cannot: it handles buffered messages whose predecessor
// was handled elsewhere, ends gaps, and purges ids. It blocks until ctx ends and
// then returns nil. It first checks the store and returns that error if it cannot
// be used; from then on it outlives failures and says so in the log.
//
// It must run in at least one instance of a service; several do not disturb each
// other. It handles what waits once a handler was wrapped.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer c.running.Store(false)
	if err := c.inbox.Check(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("consumer: the store cannot be used: %w", err)
	}
	purged := time.Now()
	for ctx.Err() == nil {
		start := time.Now()
		if err := c.sweep(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("looking for what waits failed", "error", err)
		}
		if time.Since(purged) >= purgeEvery {
			purged = time.Now()
			c.purge(ctx)
		}
		// A full buffer takes long to look through: no more than a tenth of the time.
		wait := max(c.cfg.SweepInterval, 9*time.Since(start))
		select {
		case <-time.After(wait):
		case <-c.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

func (c *Consumer) sweep(ctx context.Context) error {
	b, err := c.upkeep.Backlog(ctx)
	c.hooks.swept(b, err)
	if err != nil {
		return err
	}
	c.held.Store(b.Buffered)
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, sweepWorkers)
	var after backends.InboxKey
	for ctx.Err() == nil {
		page, err := c.upkeep.Waiting(ctx, after, sweepPage)
		if err != nil {
			return err
		}
		for _, w := range page {
			after = w.InboxKey
			if !c.due(w) {
				continue
			}
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			wg.Go(func() {
				defer func() { <-free }()
				c.attend(ctx, w)
			})
		}
		if len(page) < sweepPage {
			return nil
		}
	}
	return nil
}

// ready tells whether the next of an aggregate is in the buffer.
func ready(w backends.InboxWaiting) bool { return w.Aggregate == "" || w.Lowest == w.Last+1 }

// due tells whether there is something to do for an aggregate.
func (c *Consumer) due(w backends.InboxWaiting) bool {
	if ready(w) {
		return c.handler.Load() != nil && !c.waits.left(w.InboxKey)
	}
	return w.Lowest > w.Last && w.Age >= c.cfg.GapTimeout
}

// attend does it.
func (c *Consumer) attend(ctx context.Context, w backends.InboxWaiting) {
	if !ready(w) {
		if !c.resolve(ctx, w) {
			return
		}
	}
	if h := c.handler.Load(); h != nil {
		c.drain(ctx, w.InboxKey, *h)
	}
}

// resolve ends a gap that was waited for long enough, and reports whether the
// aggregate can go on.
func (c *Consumer) resolve(ctx context.Context, w backends.InboxWaiting) bool {
	how, word := backends.GapAdopt, "adopted"
	if !w.First {
		switch c.cfg.OnGap {
		case Skip:
			how, word = backends.GapSkip, "skipped"
		case Park:
			how, word = backends.GapPark, "parked"
		default:
			c.holdOn(w)
			return false
		}
	}
	done, err := c.upkeep.Resolve(ctx, w.InboxKey, how, c.cfg.GapTimeout)
	if err != nil {
		if ctx.Err() == nil {
			c.log.Warn("a gap could not be ended", "topic", w.Topic, "error", err)
		}
		return false
	}
	if done {
		c.hooks.gap(w, word)
		c.log.Warn("messages of an aggregate did not come in time", "topic", w.Topic, "expected", w.Last+1, "found", w.Lowest,
			"waited", w.Age, "now", word)
	}
	return done && how != backends.GapPark
}

// holdOn says that a gap is held, not at each look.
func (c *Consumer) holdOn(w backends.InboxWaiting) {
	if c.waits.left(heldKey{w.InboxKey}) {
		return
	}
	c.waits.leave(heldKey{w.InboxKey}, time.Minute)
	c.hooks.gap(w, "held")
	c.log.Error("an aggregate waits for messages that do not come: find them, or skip them", "topic", w.Topic,
		"expected", w.Last+1, "found", w.Lowest, "waited", w.Age, "buffered", w.Buffered)
}

type heldKey struct{ backends.InboxKey }

// drain handles what is next in the buffer, one transaction each, for a limited
// time. What is left, or fails, is for Run.
func (c *Consumer) drain(ctx context.Context, key backends.InboxKey, h message.HandlerFunc) {
	end := time.Now().Add(drainTime)
	for n := 0; ; n++ {
		if n == drainBatch || time.Now().After(end) || ctx.Err() != nil {
			c.nudge()
			return
		}
		more, attempts, err := c.next(ctx, key, h)
		if err != nil {
			c.waits.leave(key, backoff(attempts))
			if ctx.Err() == nil {
				c.log.Warn("a buffered message could not be handled yet", "topic", key.Topic, "attempts", attempts, "error", err)
			}
			return
		}
		if !more {
			return
		}
	}
}

// next handles one buffered message.
func (c *Consumer) next(ctx context.Context, key backends.InboxKey, h message.HandlerFunc) (more bool, attempts int, err error) {
	if key.Aggregate != "" {
		unlock, err := c.keys.lock(ctx, key)
		if err != nil {
			return false, 0, err
		}
		defer unlock()
	}
	start := time.Now()
	tx, d, s, err := c.inbox.Next(ctx, key, false)
	if err != nil || tx == nil {
		return false, 0, err
	}
	if s.Place == backends.Moved {
		return true, 0, c.commit(ctx, tx)
	}
	msg := message.NewMessage(d.MessageID, d.Payload)
	msg.Metadata = d.Metadata
	msg.SetContext(ctx)
	if c.cfg.PublishTopic != "" {
		d.ReplyTopic = c.cfg.PublishTopic
	}
	e := Event{Message: msg, Key: key, Received: d.Sequence, Expected: d.Sequence, FromBuffer: true}
	order := backends.InSequence
	if key.Aggregate == "" {
		order = backends.AnyOrder
	}
	ctx, err = c.handle(ctx, tx, d, order, msg, h, &e)
	if err != nil {
		e.Outcome, e.Err = Failed, err
	} else if e.Outcome == Processed {
		c.held.Add(-1)
	}
	e.Took = time.Since(start)
	c.hooks.done(ctx, e)
	return true, e.Attempts, err
}

func (c *Consumer) purge(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := c.upkeep.Purge(ctx, purgeBatch)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				c.log.Warn("purging ids failed", "error", err)
			}
			return
		}
		if n > 0 {
			c.hooks.purged(n)
		}
		if n < purgeBatch {
			return
		}
	}
}
