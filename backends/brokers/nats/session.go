package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outmill/outmill/backends"
)

// session is a connection with the place that its answers come to. One call of
// Publish has it at a time.
type session struct {
	conn    *nats.Conn
	prefix  string // of the subjects that answers come to
	token   uint64 // the last answer asked for
	answers chan *nats.Msg
	refused chan error    // what the server says of no record in particular
	closed  chan struct{} // the connection has ended

	mu     sync.Mutex
	socket net.Conn
	isCut  bool
}

// dial connects. The client cannot be told to stop, so that it goes on in a
// goroutine of its own, which owns the connection if nobody waits for it any more.
func (b *Broker) dial(ctx context.Context) (*session, error) {
	s := &session{
		answers: make(chan *nats.Msg, b.cfg.MaxPending), // a full channel would drop answers: see sendReady
		refused: make(chan error, 16),
		closed:  make(chan struct{}),
	}
	opts, err := b.cfg.options()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		nats.SetCustomDialer(&dialer{session: s, Dialer: net.Dialer{Timeout: b.cfg.DialTimeout}}),
		nats.ClosedHandler(func(*nats.Conn) { close(s.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case s.refused <- err:
			default: // the records behind it run into AckTimeout
			}
		}),
	)
	connected := make(chan error)
	b.wg.Go(func() {
		err := s.connect(b.cfg.Servers, opts)
		select {
		case connected <- err:
		case <-ctx.Done():
			s.close()
		}
	})
	select {
	case err = <-connected:
	case <-ctx.Done():
		s.cut()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, backends.Unavailable(fmt.Errorf("nats: no connection: %w", err))
	}
	return s, nil
}

func (s *session) connect(servers []string, opts []nats.Option) error {
	conn, err := nats.Connect(strings.Join(servers, ","), opts...)
	if err != nil {
		return err
	}
	s.conn = conn
	if !conn.HeadersSupported() {
		conn.Close()
		return errors.New("the server knows no headers: NATS 2.2 or newer is needed")
	}
	s.prefix = nats.NewInbox() + "."
	if _, err := conn.ChanSubscribe(s.prefix+"*", s.answers); err != nil {
		conn.Close()
		return err
	}
	return nil
}

// send publishes a record and returns the token that its answer carries.
func (s *session) send(m *nats.Msg) (uint64, error) {
	s.token++
	m.Reply = s.prefix + strconv.FormatUint(s.token, 36)
	return s.token, s.conn.PublishMsg(m)
}

// tokenOf is the token of an answer, 0 for what is none.
func (s *session) tokenOf(m *nats.Msg) uint64 {
	token, _ := strconv.ParseUint(strings.TrimPrefix(m.Subject, s.prefix), 36, 64)
	return token
}

// cut ends every read and write under way, also one that hangs.
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
	if s.conn != nil {
		s.conn.Close()
	}
}

// dialer keeps the socket of a session, so that it can be cut.
type dialer struct {
	net.Dialer
	session *session
}

// Dial implements the client's dialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.Timeout)
	defer cancel()
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s := d.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isCut {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	s.socket = c
	return c, nil
}

// reach asks the server for a sign of life.
func (s *session) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, errors.New("no answer in time"))
	defer cancel()
	if err := s.conn.FlushWithContext(ctx); err != nil {
		return backends.Unavailable(fmt.Errorf("nats: the server does not answer: %w", err))
	}
	return nil
}

// pingLimit is how long a server may take to say that it is there.
const pingLimit = 3 * time.Second
