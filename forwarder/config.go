package forwarder

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/outmill/outmill/backends"
)

// Config sets a forwarder up. Its zero value works.
type Config struct {
	// Name is how this forwarder appears in the list of owners. A random part is
	// added, so that it need not be unique. Default: the host's name.
	Name string

	// Workers read, publish and settle side by side. Default: 4.
	Workers int

	// Batch is how many records a worker takes at a time, BatchBytes how many
	// bytes of payload. Defaults: 1000 and 4 MiB.
	Batch      int
	BatchBytes int

	// PublishTimeout limits one call to the broker. Default: 10 s.
	PublishTimeout time.Duration

	// Lease is how long records may wait for another forwarder after theirs has
	// died: its shards are held for a little less, and another notices within what
	// is left. It must leave room for a publish, so it must be at least one and a
	// half times PublishTimeout. Default: 15 s.
	Lease time.Duration

	// Shutdown is how long Run may take to return once its context has ended.
	// Default: 30 s.
	Shutdown time.Duration

	// MaxAttempts is how often a record is tried before it is given up. Negative:
	// no limit. Default: 10.
	MaxAttempts int

	// RetryMin and RetryMax limit the wait before a record's next attempt, which
	// doubles each time and is cut by up to half at random. Defaults: 1 s, 5 min.
	RetryMin, RetryMax time.Duration

	// PollMin and PollMax limit the wait before the next look for records after
	// one that found none. Where the store can say cheaply whether there is
	// anything new, it is asked every PollMin, every four times that after a
	// second of silence, and every eight times that after ten. Defaults: 5 ms, 1 s.
	PollMin, PollMax time.Duration

	// Poison says what happens to a record that is given up. Default: Park.
	Poison Poison

	// Allow lists the topics that may be sent to. Records of others are given up
	// without being sent. Default: all topics.
	Allow []string

	// Middleware wraps the broker, the first outermost.
	Middleware []func(backends.Broker) backends.Broker

	// Hooks are told what happens.
	Hooks Hooks

	// Logger takes what an operator should know. Default: slog.Default().
	Logger *slog.Logger
}

// Poison is what happens to a record that is given up.
type Poison uint8

const (
	// Park sets the record and all later ones of its aggregate aside as dead
	// letters, in order, until someone requeues or discards them.
	Park Poison = iota
	// Skip sets the record alone aside; later ones of its aggregate go on.
	Skip
	// Block never gives up: the record is tried again and again, and its aggregate
	// waits behind it.
	Block
)

// limits that bad numbers are measured against.
const (
	maxWorkers = 64
	maxBatch   = 100_000
	// storeTimeout limits one call to the store, save for settling at shutdown.
	storeTimeout = 10 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "forwarder"
		if host, err := os.Hostname(); err == nil && host != "" {
			c.Name = host
		}
	}
	setDefault(&c.Workers, 4)
	setDefault(&c.Batch, 1000)
	setDefault(&c.BatchBytes, 4<<20)
	setDefault(&c.PublishTimeout, 10*time.Second)
	setDefault(&c.Lease, 15*time.Second)
	setDefault(&c.Shutdown, 30*time.Second)
	setDefault(&c.MaxAttempts, 10)
	setDefault(&c.RetryMin, time.Second)
	setDefault(&c.RetryMax, max(5*time.Minute, c.RetryMin))
	setDefault(&c.PollMin, 5*time.Millisecond)
	setDefault(&c.PollMax, max(time.Second, c.PollMin))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	between := func(name string, ok bool, got any, allowed string) {
		if !ok {
			faults = append(faults, fmt.Errorf("forwarder: %s is %v, allowed is %s", name, got, allowed))
		}
	}
	between("Workers", c.Workers >= 1 && c.Workers <= maxWorkers, c.Workers, "1 to 64")
	between("Batch", c.Batch >= 1 && c.Batch <= maxBatch, c.Batch, "1 to 100000")
	between("BatchBytes", c.BatchBytes >= 1, c.BatchBytes, "1 or more")
	between("PublishTimeout", c.PublishTimeout >= time.Millisecond, c.PublishTimeout, "1ms or more")
	between("Lease", c.Lease >= c.PublishTimeout*3/2, c.Lease,
		fmt.Sprintf("at least %v, one and a half times PublishTimeout", c.PublishTimeout*3/2))
	between("Shutdown", c.Shutdown >= time.Millisecond, c.Shutdown, "1ms or more")
	between("RetryMin", c.RetryMin > 0, c.RetryMin, "more than 0")
	between("RetryMax", c.RetryMax >= c.RetryMin, c.RetryMax, fmt.Sprintf("at least RetryMin, which is %v", c.RetryMin))
	between("PollMin", c.PollMin >= time.Millisecond, c.PollMin, "1ms or more")
	between("PollMax", c.PollMax >= c.PollMin && c.PollMax <= c.Lease, c.PollMax,
		fmt.Sprintf("PollMin to Lease, which are %v and %v", c.PollMin, c.Lease))
	between("Poison", c.Poison <= Block, c.Poison, "Park, Skip or Block")
	for i, topic := range c.Allow {
		between(fmt.Sprintf("Allow[%d]", i), topic != "", `""`, "a topic's name")
	}
	for i, m := range c.Middleware {
		between(fmt.Sprintf("Middleware[%d]", i), m != nil, "nil", "a function")
	}
	return errors.Join(faults...)
}

// heartbeat is how often a lease is renewed, and how often shards that another
// forwarder has left are looked for.
func (c Config) heartbeat() time.Duration { return max(time.Millisecond, min(c.Lease/6, time.Second)) }

// term is for how long shards are held at a time: with the next heartbeat of
// another forwarder, and half of one for what takes time, it makes a Lease.
func (c Config) term() time.Duration { return c.Lease - c.heartbeat()*3/2 }

// margin is how much longer than a publish a lease must last when one starts:
// time for the answer to arrive and for clocks that run at unlike speeds.
func (c Config) margin() time.Duration { return c.term() / 15 }
