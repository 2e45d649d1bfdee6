package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Errors that callers branch on.
var (
	// ErrRunning comes from Run while it runs already.
	ErrRunning = errors.New("consumer: Run is running")
	// ErrTwoHandlers comes from a second handler on one consumer.
	ErrTwoHandlers = errors.New("consumer: it serves another handler already: make a consumer with a Name of its own for each handler")
	// ErrAhead comes from a message that was refused since one before it is missing.
	ErrAhead = errors.New("consumer: a message before this one has not come yet")
	// ErrFull comes from a message that found the buffer full.
	ErrFull = errors.New("consumer: the buffer for messages that come early is full")
)

// Consumer handles the deliveries of one handler. It is safe for concurrent use.
type Consumer struct {
	cfg    Config
	inbox  backends.Inbox
	upkeep backends.InboxUpkeep
	hooks  watched
	log    *slog.Logger

	handler atomic.Pointer[message.HandlerFunc]
	keys    keys
	waits   waits
	running atomic.Bool
	wake    chan struct{}
	held    atomic.Int64 // in the buffer, as last seen
	absent  absence
}

// New makes a consumer on a store. It connects to nothing and starts nothing. It
// reports every fault of the configuration.
func New(store backends.Inboxes, cfg Config) (*Consumer, error) {
	if store == nil {
		return nil, errors.New("consumer: the store is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	inbox, err := store.Inbox(cfg.inbox())
	if err != nil {
		return nil, err
	}
	upkeep, ok := inbox.(backends.InboxUpkeep)
	if !ok {
		return nil, fmt.Errorf("consumer: an inbox of type %T cannot be kept up: it needs to implement backends.InboxUpkeep", inbox)
	}
	log := cfg.Logger.With("inbox", cfg.Name)
	return &Consumer{
		cfg: cfg, inbox: inbox, upkeep: upkeep, hooks: watched{cfg.Hooks, log}, log: log,
		wake: make(chan struct{}, 1),
	}, nil
}

// DeadLetters is what operators do with what was given up; false if the store
// does not offer it.
func (c *Consumer) DeadLetters() (backends.InboxDeadLetters, bool) {
	d, ok := c.inbox.(backends.InboxDeadLetters)
	return d, ok
}

// SkipGap goes on without the messages that an aggregate waits for, at once. It
// reports whether there was a gap that nobody is working on.
func (c *Consumer) SkipGap(ctx context.Context, key backends.InboxKey) (bool, error) {
	done, err := c.upkeep.Resolve(ctx, key, backends.GapSkip, 0)
	if done {
		c.nudge()
	}
	return done, err
}

// Wrap returns a handler that does its work in the inbox: it is a Watermill
// handler middleware. What the handler returns is appended to the outbox, so
// nothing is left for the router to publish. A consumer serves one handler: a
// second one fails each message with [ErrTwoHandlers].
func (c *Consumer) Wrap(h message.HandlerFunc) message.HandlerFunc {
	if !c.handler.CompareAndSwap(nil, &h) {
		c.log.Error("two handlers use one consumer: each needs its own, with its own Name")
		return func(*message.Message) ([]*message.Message, error) { return nil, ErrTwoHandlers }
	}
	return func(msg *message.Message) ([]*message.Message, error) { return nil, c.receive(msg, h) }
}

// delivery is what an inbox needs of a message.
func (c *Consumer) delivery(msg *message.Message) *backends.Delivery {
	ctx := msg.Context()
	d := &backends.Delivery{
		MessageID: msg.UUID, Payload: msg.Payload, Metadata: msg.Metadata,
		ReplyTopic: message.PublishTopicFromCtx(ctx),
	}
	if c.cfg.PublishTopic != "" {
		d.ReplyTopic = c.cfg.PublishTopic
	}
	d.Topic = msg.Metadata.Get(backends.TopicKey)
	if !storable(d.Topic) {
		d.Topic = message.SubscribeTopicFromCtx(ctx)
	}
	if !storable(d.MessageID) {
		d.MessageID = "" // the inbox refuses it
	}
	if a := backends.Aggregate(msg); storable(a) {
		d.Aggregate = a
	}
	d.Sequence, _ = backends.Sequence(msg)
	if at, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(backends.CreatedAtKey)); err == nil {
		d.Age = max(time.Since(at), 1)
	}
	return d
}

// storable tells whether a name fits into every database.
func storable(s string) bool {
	if s == "" || len(s) > maxName || !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return true
}

func (c *Consumer) order(d *backends.Delivery) backends.InboxOrder {
	switch {
	case c.cfg.Sequence == Off || d.Aggregate == "" || d.Sequence == 0:
		return backends.AnyOrder
	case c.cfg.Sequence == Latest:
		return backends.Newer
	}
	return backends.InSequence
}

// nudge lets Run look at once.
func (c *Consumer) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// absence notices that Run does not run.
type absence struct {
	mu     sync.Mutex
	since  time.Time // the first delivery without it
	warned time.Time
}

// absentAfter is how long deliveries go on without Run before it is said, and
// absentEvery how often.
const absentAfter, absentEvery = 10 * time.Second, time.Minute

func (c *Consumer) noticeAbsence() {
	a := &c.absent
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	switch {
	case c.running.Load():
		a.since = time.Time{}
	case a.since.IsZero():
		a.since = now
	case now.Sub(a.since) >= absentAfter && now.Sub(a.warned) >= absentEvery:
		a.warned = now
		c.log.Error("Consumer.Run does not run in this process: where it runs nowhere, buffered messages stay behind, gaps never end and ids are never purged")
	}
}
