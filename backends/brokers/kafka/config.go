package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config sets a broker up. Only Brokers must be set.
type Config struct {
	// Brokers are the addresses to begin with, host:port.
	Brokers []string

	// ClientID is how the client names itself. Default: outmill.
	ClientID string

	// TLS turns encryption on. Default: off.
	TLS *tls.Config

	// SASL authenticates the client. Default: off.
	SASL SASL

	// MaxMessageBytes is how large a record may be with its key and headers,
	// before compression. It must not exceed what the topics allow
	// (max.message.bytes). Default: 1,000,000.
	MaxMessageBytes int

	// Compression is none, gzip, snappy, lz4 or zstd. It does not change what
	// MaxMessageBytes counts. Default: none.
	Compression string

	// AllowAutoTopicCreation lets the brokers make topics that do not exist. Such
	// a topic is unavailable until it is there, for ever where the brokers do not
	// make topics. Default: a record for such a topic is refused for good.
	AllowAutoTopicCreation bool

	// DialTimeout limits a connection attempt. Default: 5 s.
	DialTimeout time.Duration
}

// SASL names a user. Its text never holds the password.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: off
	User      string
	Password  string
}

// String names the mechanism and nothing else.
func (s SASL) String() string {
	if s.Mechanism == "" {
		return "SASL off"
	}
	return "SASL " + s.Mechanism
}

// GoString is String.
func (s SASL) GoString() string { return s.String() }

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "outmill"
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 1_000_000
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.Compression == "" {
		c.Compression = "none"
	}
	return c
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("kafka: "+format, args...)) }
	if len(c.Brokers) == 0 {
		fault("Brokers is empty: name at least one host:port")
	}
	for i, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			fault("Brokers[%d] is no host:port", i) // not quoted: it may hold a secret by mistake
		}
	}
	if c.MaxMessageBytes < 1<<10 || c.MaxMessageBytes > 1<<30 {
		fault("MaxMessageBytes is %d, allowed is 1024 to %d", c.MaxMessageBytes, 1<<30)
	}
	if _, ok := codecs[c.Compression]; !ok {
		fault("Compression is %q, allowed is none, gzip, snappy, lz4 or zstd", c.Compression)
	}
	if c.DialTimeout < 0 {
		fault("DialTimeout is %v, allowed is more than 0", c.DialTimeout)
	}
	switch c.SASL.Mechanism {
	case "":
		if c.SASL.User != "" || c.SASL.Password != "" {
			fault("SASL names a user but no Mechanism: set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		if c.SASL.User == "" {
			fault("SASL.User is empty")
		}
	default:
		fault("SASL.Mechanism is %q, allowed is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", c.SASL.Mechanism)
	}
	return errors.Join(faults...)
}

// Limits on repeating a request. With one batch of a partition on its way that
// cannot change their order, and sequence numbers keep repeats out.
const (
	retries    = 3
	retryPause = 50 * time.Millisecond
	ackLimit   = 10 * time.Second // for all replicas to have a batch, by the leader's clock
)

// produceVersion is the last whose requests and answers call topics by name.
const (
	produceKey     = 0
	produceVersion = 12
)

func (c Config) options() []kgo.Opt {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(produceKey, produceVersion)
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.DialTimeout(c.DialTimeout),
		kgo.MaxVersions(versions),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.BrokerMaxWriteBytes(int32(max(c.MaxMessageBytes+1<<20, 100<<20))),
		kgo.RequestRetries(retries),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryPause }),
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS.Clone()))
	}
	switch c.SASL.Mechanism {
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsSha512Mechanism()))
	}
	return opts
}
