package nats

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
)

// Config sets a broker up. Only Servers must be set.
type Config struct {
	// Servers are the addresses to choose from, nats://host:port or tls://host:port.
	// They hold no user: see Auth.
	Servers []string

	// Name is how the client names itself. Default: outmill.
	Name string

	// TLS turns encryption on. Default: off, unless a server asks for it.
	TLS *tls.Config

	// Auth authenticates the client. Default: off.
	Auth Auth

	// MaxPending is how many records of one call may wait for the server's word at
	// once, 1 to 65,536. Default: 1,000.
	MaxPending int

	// AckTimeout is how long a topic may give no answer at all while records wait
	// for one. Their outcome is unknown then. Default: 5 s.
	AckTimeout time.Duration

	// DialTimeout limits a connection attempt to one server. Default: 5 s.
	DialTimeout time.Duration
}

// Auth names a user in one of four ways. Its text never holds a secret.
type Auth struct {
	User, Password  string
	Token           string
	CredentialsFile string // as nsc writes it, with a JWT and a seed
	SeedFile        string // an nkey's seed
}

// String names the way and nothing else.
func (a Auth) String() string {
	switch ways := a.ways(); {
	case len(ways) == 0:
		return "auth off"
	default:
		return "auth by " + ways[0]
	}
}

// GoString is String.
func (a Auth) GoString() string { return a.String() }

func (a Auth) ways() []string {
	var out []string
	for _, w := range []struct {
		set  bool
		name string
	}{
		{a.User != "" || a.Password != "", "User"},
		{a.Token != "", "Token"},
		{a.CredentialsFile != "", "CredentialsFile"},
		{a.SeedFile != "", "SeedFile"},
	} {
		if w.set {
			out = append(out, w.name)
		}
	}
	return out
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "outmill"
	}
	if c.MaxPending == 0 {
		c.MaxPending = 1000
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = 5 * time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	return c
}

// validate reports every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("nats: "+format, args...)) }
	if len(c.Servers) == 0 {
		fault("Servers is empty: name at least one nats://host:port")
	}
	for i, s := range c.Servers { // not quoted: it may hold a secret by mistake
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "":
			fault("Servers[%d] is no nats://host:port or tls://host:port", i)
		case u.User != nil:
			fault("Servers[%d] holds a user: set Auth", i)
		}
	}
	if c.MaxPending < 1 || c.MaxPending > 1<<16 {
		fault("MaxPending is %d, allowed is 1 to %d", c.MaxPending, 1<<16)
	}
	if c.AckTimeout < 0 {
		fault("AckTimeout is %v, allowed is more than 0", c.AckTimeout)
	}
	if c.DialTimeout < 0 {
		fault("DialTimeout is %v, allowed is more than 0", c.DialTimeout)
	}
	if ways := c.Auth.ways(); len(ways) > 1 {
		fault("Auth names %d ways, %v: choose one", len(ways), ways)
	}
	if c.Auth.Password != "" && c.Auth.User == "" {
		fault("Auth.User is empty")
	}
	return errors.Join(faults...)
}

// options are the client's. It neither reconnects nor tries again: what was on
// its way would be overtaken by what follows it.
func (c Config) options() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.NoReconnect(),
		nats.Timeout(c.DialTimeout),
		nats.FlusherTimeout(c.AckTimeout),
	}
	if c.TLS != nil {
		opts = append(opts, nats.Secure(c.TLS.Clone()))
	}
	switch a := c.Auth; {
	case a.User != "":
		opts = append(opts, nats.UserInfo(a.User, a.Password))
	case a.Token != "":
		opts = append(opts, nats.Token(a.Token))
	case a.CredentialsFile != "":
		opts = append(opts, nats.UserCredentials(a.CredentialsFile))
	case a.SeedFile != "":
		seed, err := nats.NkeyOptionFromSeed(a.SeedFile)
		if err != nil {
			return nil, fmt.Errorf("nats: read Auth.SeedFile: %w", err)
		}
		opts = append(opts, seed)
	}
	return opts, nil
}
