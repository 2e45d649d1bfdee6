package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outmill/outmill/backends"
)

// session is a client with one connection. One call of Publish has it at a time.
//
// The client gets the connection ready made and never another. Were it to dial
// and fail, it would go on dialling in the background, and write to the process's log.
type session struct {
	client *redis.Client
	used   time.Time // when the server last answered
	socket net.Conn
}

// ready is a connection that the client does not look into for signs of its end
// before it writes: it would dial anew, and reach does that better.
type ready struct{ net.Conn }

// open connects and learns whether the server takes transactions.
func open(ctx context.Context, cfg Config) (*session, error) {
	s := &session{}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.DialTimeout, errors.New("no connection in time"))
	defer cancel()
	c, err := s.dial(ctx, cfg)
	if err != nil {
		s.cut()
		return nil, backends.Unavailable(fmt.Errorf("redis: no connection: %w", err))
	}
	o := cfg.options()
	var given atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) { // it wants another: this one has failed, and is closed now
			s.cut()
		}
		return ready{c}, nil
	}
	s.client = redis.NewClient(o)
	if err := s.reach(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) dial(ctx context.Context, cfg Config) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	s.socket = c
	if cfg.TLS == nil {
		return c, nil
	}
	return secure(ctx, c, cfg.TLS, cfg.Addr)
}

// secure begins TLS on a connection.
func secure(ctx context.Context, c net.Conn, cfg *tls.Config, addr string) (net.Conn, error) {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		cfg.ServerName = host
	}
	t := tls.Client(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// cut ends every read and write under way: the client itself hears of a
// deadline, and not that a context was cancelled.
func (s *session) cut() {
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
	s.used = time.Now()
	return nil
}

// fresh is how long after an answer a connection is taken to be sound.
const fresh = time.Second

// pingLimit is how long a server may take to say that it is there.
const pingLimit = 3 * time.Second
