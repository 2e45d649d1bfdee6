package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outmill/outmill/backends"
)

// session is a client with one connection. One call of Publish has it at a time.
type session struct {
	client *redis.Client
	dialer net.Dialer
	addr   string

	mu     sync.Mutex
	opened net.Conn // for the client to begin with
	socket net.Conn
	isCut  bool
}

func newSession(cfg Config) *session {
	s := &session{dialer: net.Dialer{Timeout: cfg.DialTimeout}, addr: cfg.Addr}
	o := cfg.options()
	secured := o.TLSConfig
	o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := s.dial(ctx)
		if err != nil || secured == nil {
			return c, err
		}
		return secure(ctx, c, secured, cfg.Addr)
	}
	s.client = redis.NewClient(o)
	return s
}

// open connects, so that the client finds a connection that is there: it writes
// to the process's log of attempts that fail.
func (s *session) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, errors.New("no connection in time"))
	defer cancel()
	c, err := s.dial(ctx)
	if err != nil {
		return backends.Unavailable(fmt.Errorf("redis: no connection: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = c
	return nil
}

// dial connects, or returns the connection that was opened before.
func (s *session) dial(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	c := s.opened
	s.opened = nil
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := s.dialer.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	if err := s.keep(c); err != nil {
		return nil, err
	}
	return c, nil
}

// secure begins TLS on a connection.
func secure(ctx context.Context, c net.Conn, cfg *tls.Config, addr string) (net.Conn, error) {
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	t := tls.Client(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

func (s *session) keep(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isCut {
		return errors.Join(net.ErrClosed, c.Close())
	}
	s.socket = c
	return nil
}

// cut ends every read and write under way: the client itself hears of a
// deadline, and not that a context was cancelled.
func (s *session) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isCut = true
	if s.socket != nil {
		_ = s.socket.Close() // the client closes it too
	}
}

func (s *session) close() {
	s.cut()
	_ = s.client.Close() // nothing is left to be lost
}

// reach asks the server for a sign of life: an empty transaction. Where the user
// may not begin one, each command of a batch would be done by itself.
func (s *session) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, errors.New("no answer in time"))
	defer cancel()
	stop := context.AfterFunc(ctx, s.cut)
	defer stop()
	pipe := s.client.Pipeline()
	_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "multi"))
	_ = pipe.Process(ctx, redis.NewSliceCmd(ctx, "exec"))
	if _, err := pipe.Exec(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return backends.Unavailable(fmt.Errorf("redis: the server cannot be reached, or lets the user begin no transaction: %w", err))
	}
	return nil
}

// pingLimit is how long a server may take to say that it is there.
const pingLimit = 3 * time.Second
