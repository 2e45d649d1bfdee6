package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/outmill/outmill/backends"
)

// Config sets a consumer up. Only Name is needed.
type Config struct {
	// Name keeps inboxes of a store apart: a message is handled once for each. All
	// instances of a service use the same. Whoever changes it handles again what
	// is delivered again.
	Name string

	// Sequence says what happens to messages that come out of order. Default: Buffer.
	Sequence Policy

	// MaxAttempts is how often a handler may fail before the message becomes a
	// dead letter. Negative: no limit. Default: 10.
	MaxAttempts int

	// HandlerTimeout limits a handler's context. Negative: no limit. Default: 30 s.
	HandlerTimeout time.Duration

	// GapTimeout is how long a message is waited for whose successors are there.
	// It must be longer than the broker takes to deliver again: after a take-over
	// up to 60 s for Kafka and 65 s for Redis. Default: 2 min.
	GapTimeout time.Duration
	// OnGap says what happens then. Default: Hold.
	OnGap OnGap

	// RejectFor is how long the policy Reject refuses a message before it buffers
	// it. Default: 2 s.
	RejectFor time.Duration

	// BufferAggregate and BufferTotal limit how many messages wait, of an
	// aggregate and of the inbox. Defaults: 1,000 and 100,000.
	BufferAggregate, BufferTotal int
	// OnFull says what happens to one more. Default: Refuse.
	OnFull OnFull

	// Redelivery is how late the broker may deliver a message again: for Kafka the
	// topic's retention. Retention is how long ids of handled messages are kept, and
	// must not be less. Defaults: 7 days, and a day more than that.
	Redelivery, Retention time.Duration
	// NoMarks keeps no ids of messages with a sequence: it tells by itself what was
	// handled. Reuse of a sequence is not noticed then.
	NoMarks bool

	// LockTimeout limits the wait for another instance that handles the same
	// aggregate. Default: 10 s.
	LockTimeout time.Duration

	// SweepInterval is how often Run looks for what waits. Default: 1 s.
	SweepInterval time.Duration

	// PublishTopic is where messages that a handler returns are published. Default:
	// the topic that the router's handler was given.
	PublishTopic string

	// Hooks are told what happens.
	Hooks Hooks

	// Logger takes what an operator should know. Default: slog.Default().
	Logger *slog.Logger
}

// Policy says what happens to a message whose sequence is not the next of its
// aggregate. Messages without a sequence are handled once by their id.
type Policy uint8

const (
	// Buffer stores a message that comes early and handles it after its
	// predecessors.
	Buffer Policy = iota
	// Off takes no notice of sequences: each message once, by its id.
	Off
	// Reject refuses a message that comes early, so that the broker delivers it
	// again, for at most RejectFor. Then it is buffered: most subscribers cannot
	// deliver the predecessor while this one is not acked.
	Reject
	// Latest handles what is newer than the last, and drops what is older.
	Latest
)

// OnGap says what happens after GapTimeout.
type OnGap uint8

const (
	// Hold goes on waiting, and says so.
	Hold OnGap = iota
	// Skip goes on with the next that is there. One that was skipped becomes a
	// dead letter if it comes after all.
	Skip
	// Park sets the aggregate aside as dead letters.
	Park
)

// OnFull says what happens to a message that finds the buffer full.
type OnFull uint8

const (
	// Refuse returns an error, so that the broker delivers it again.
	Refuse OnFull = iota
	// ParkFull sets its aggregate aside as dead letters.
	ParkFull
)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) withDefaults() Config {
	setDefault(&c.MaxAttempts, 10)
	setDefault(&c.HandlerTimeout, 30*time.Second)
	setDefault(&c.GapTimeout, 2*time.Minute)
	setDefault(&c.RejectFor, 2*time.Second)
	setDefault(&c.BufferAggregate, 1000)
	setDefault(&c.BufferTotal, 100_000)
	setDefault(&c.Redelivery, 7*24*time.Hour)
	setDefault(&c.Retention, c.Redelivery+24*time.Hour)
	setDefault(&c.LockTimeout, 10*time.Second)
	setDefault(&c.SweepInterval, time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(bad bool, name string, got any, allowed string) {
		if bad {
			faults = append(faults, fmt.Errorf("consumer: %s is %v, allowed is %s", name, got, allowed))
		}
	}
	fault(len(c.Name) == 0 || len(c.Name) > maxName, "Name", fmt.Sprintf("%d bytes long", len(c.Name)), "1 to 255 bytes")
	fault(c.Sequence > Latest, "Sequence", c.Sequence, "Buffer, Off, Reject or Latest")
	fault(c.OnGap > Park, "OnGap", c.OnGap, "Hold, Skip or Park")
	fault(c.OnFull > ParkFull, "OnFull", c.OnFull, "Refuse or ParkFull")
	fault(c.GapTimeout < 0, "GapTimeout", c.GapTimeout, "more than 0")
	fault(c.RejectFor < 0, "RejectFor", c.RejectFor, "more than 0")
	fault(c.BufferAggregate < 1, "BufferAggregate", c.BufferAggregate, "1 or more")
	fault(c.BufferTotal < 1, "BufferTotal", c.BufferTotal, "1 or more")
	fault(c.Redelivery < 0, "Redelivery", c.Redelivery, "more than 0")
	fault(c.LockTimeout < time.Millisecond, "LockTimeout", c.LockTimeout, "1ms or more")
	fault(c.SweepInterval < time.Millisecond, "SweepInterval", c.SweepInterval, "1ms or more")
	if c.Retention < c.Redelivery {
		faults = append(faults, fmt.Errorf("consumer: Retention is %v and Redelivery is %v: a message that is delivered again "+
			"after its id was dropped would be handled twice: keep ids at least as long", c.Retention, c.Redelivery))
	}
	return errors.Join(faults...)
}

func (c Config) inbox() backends.InboxConfig {
	out := backends.InboxConfig{Name: c.Name, Retention: c.Retention, NoMarks: c.NoMarks, LockTimeout: c.LockTimeout}
	if c.HandlerTimeout > 0 {
		// Above what the consumer ends by itself.
		out.IdleTimeout = c.HandlerTimeout + 30*time.Second
	}
	return out
}

const (
	maxName = 255
	// callTimeout limits what is done when the delivery's own context has ended.
	callTimeout = 10 * time.Second
	// pauseMin and pauseMax limit the wait before a failed message is given back:
	// some brokers deliver it again at once.
	pauseMin, pauseMax = 20 * time.Millisecond, 5 * time.Second
	// drainBatch and drainTime limit what is handled before a delivery is acked.
	drainBatch, drainTime = 100, time.Second
)
