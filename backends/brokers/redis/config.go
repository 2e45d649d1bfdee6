package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config sets a broker up. Only Addr must be set.
type Config struct {
	// Addr is the server's address, host:port.
	Addr string

	// DB is the number of the database. Default: 0.
	DB int

	// ClientName is how the client names itself. Default: outmill.
	ClientName string

	// TLS turns encryption on. Default: off.
	TLS *tls.Config

	// Auth authenticates the client. Default: off.
	Auth Auth

	// MaxMessageBytes is how large a record may be with its metadata. It must not
	// exceed the server's proto-max-bulk-len. Default: 64 MiB.
	MaxMessageBytes int

	// MaxLen is about how many entries a stream keeps; the oldest are dropped, read
	// or not. Default: all.
	MaxLen int64

	// MaxLens sets MaxLen for single topics; 0 keeps all of one.
	MaxLens map[string]int64

	// DialTimeout limits a connection attempt, with what TLS and the user's name take. Default: 5 s.
	DialTimeout time.Duration

	// Timeout limits the wait for the server's answer, beside the context's.
	// Default: 10 s.
	Timeout time.Duration
}

// Auth names a user. Its text never holds the password.
type Auth struct {
	User     string // empty: the default user
	Password string
}

// String says whether it is set and nothing else.
func (a Auth) String() string {
	if a == (Auth{}) {
		return "auth off"
	}
	return "auth on"
}

// GoString is String.
func (a Auth) GoString() string { return a.String() }

func (c Config) withDefaults() Config {
	if c.ClientName == "" {
		c.ClientName = "outmill"
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 64 << 20
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	return c
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("redis: "+format, args...)) }
	if host, port, err := net.SplitHostPort(c.Addr); err != nil || host == "" || port == "" {
		fault("Addr is no host:port") // not quoted: it may hold a secret by mistake
	}
	if c.DB < 0 {
		fault("DB is %d, allowed is 0 or more", c.DB)
	}
	if c.MaxMessageBytes < 1<<10 || c.MaxMessageBytes > 512<<20 {
		fault("MaxMessageBytes is %d, allowed is 1024 to %d", c.MaxMessageBytes, 512<<20)
	}
	if c.MaxLen < 0 {
		fault("MaxLen is %d, allowed is 0 or more", c.MaxLen)
	}
	for topic, n := range c.MaxLens {
		if n < 0 {
			fault("MaxLens[%q] is %d, allowed is 0 or more", topic, n)
		}
	}
	if c.DialTimeout < 0 {
		fault("DialTimeout is %v, allowed is more than 0", c.DialTimeout)
	}
	if c.Timeout < 0 {
		fault("Timeout is %v, allowed is more than 0", c.Timeout)
	}
	if c.Auth.User != "" && c.Auth.Password == "" {
		fault("Auth.Password is empty")
	}
	return errors.Join(faults...)
}

// options are the client's: one connection, and nothing is tried again, since a
// repeat of what was on its way would store it twice and out of order.
func (c Config) options() *redis.Options {
	return &redis.Options{
		Addr: c.Addr, DB: c.DB, ClientName: c.ClientName,
		Username: c.Auth.User, Password: c.Auth.Password,
		Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, DialerRetries: 1,
		PoolSize: 1, MaxIdleConns: 1, ConnMaxIdleTime: -1,
		ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, PoolTimeout: c.Timeout,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// maxLen is how many entries a topic's stream keeps, 0 for all.
func (c Config) maxLen(topic string) int64 {
	if n, ok := c.MaxLens[topic]; ok {
		return n
	}
	return c.MaxLen
}
