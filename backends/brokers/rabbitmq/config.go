package rabbitmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Config sets a broker up. Only URL must be set. Its text names no secret.
type Config struct {
	// URL is amqp://user:password@host:port/vhost, or amqps:// for TLS.
	URL string

	// TLS is used with an amqps URL. Default: the system's roots and the host's name.
	TLS *tls.Config

	// Topology maps a topic to exchange and routing key, see [DurableQueue],
	// [DurablePubSub] and [DurableTopic]. Default: DurableQueue().
	Topology Topology

	// Declare makes what Topology names of the sender's side before the first
	// record of a topic goes to it. Default: nothing is declared.
	Declare bool

	// HoldUnroutable takes a record that no queue gets as unavailable, so that its
	// topic waits until a queue is there. Default: such a record is refused for good.
	HoldUnroutable bool

	// MaxMessageBytes is how large a payload may be. It must not exceed the
	// server's max_message_size. Default: 16 MiB, RabbitMQ 4's own default.
	MaxMessageBytes int

	// Channels is how many channels a call of Publish spreads its aggregates
	// over. Default: 2, allowed 1 to 16.
	Channels int

	// Name is how connections are called in the server's list. Default: outmill.
	Name string

	// DialTimeout limits an attempt to connect, handshakes included. Default: 30 s.
	DialTimeout time.Duration

	// Heartbeat is how often each side shows that it lives. The URL's heartbeat
	// parameter goes before it. Default: 10 s.
	Heartbeat time.Duration
}

// String names the fields that hold no secret.
func (c Config) String() string {
	return fmt.Sprintf("rabbitmq %q, %d channels, TLS set: %t", c.Name, c.Channels, c.TLS != nil)
}

// GoString is String.
func (c Config) GoString() string { return c.String() }

func (c Config) withDefaults() Config {
	if c.Topology.Exchange == nil && c.Topology.RoutingKey == nil {
		c.Topology = DurableQueue()
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 16 << 20
	}
	if c.Channels == 0 {
		c.Channels = 2
	}
	if c.Name == "" {
		c.Name = "outmill"
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 30 * time.Second
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 10 * time.Second
	}
	return c
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("rabbitmq: "+format, args...))
	}
	switch uri, err := amqp.ParseURI(c.URL); {
	case c.URL == "":
		fault("URL is empty: set amqp://user:password@host:port/vhost")
	case err != nil: // not quoted, nor its error: it may hold a secret
		fault("URL is not valid: want amqp:// or amqps://user:password@host:port/vhost, reserved characters percent-encoded")
	case c.TLS != nil && uri.Scheme != "amqps":
		fault("TLS is set but URL is not amqps://: use amqps, or leave TLS out")
	}
	if c.Topology.Exchange == nil || c.Topology.RoutingKey == nil {
		fault("Topology needs both Exchange and RoutingKey: use DurableQueue(), DurablePubSub(), DurableTopic(exchange) or set both")
	}
	if c.Declare && c.Topology.declare == nil {
		fault("Declare is set but Topology is your own, of which it is not known what to declare: use one of the named ones, or declare it yourself")
	}
	if c.MaxMessageBytes < 1<<10 || c.MaxMessageBytes > 512<<20 {
		fault("MaxMessageBytes is %d, allowed is 1024 to %d", c.MaxMessageBytes, 512<<20)
	}
	if c.Channels < 1 || c.Channels > 16 {
		fault("Channels is %d, allowed is 1 to 16", c.Channels)
	}
	if len(c.Name) > 255 {
		fault("Name has %d bytes, at most 255 are allowed", len(c.Name))
	}
	if c.DialTimeout < 0 {
		fault("DialTimeout is %v, allowed is more than 0", c.DialTimeout)
	}
	if c.Heartbeat < time.Second {
		fault("Heartbeat is %v, allowed is 1s or more", c.Heartbeat)
	}
	return errors.Join(faults...)
}
