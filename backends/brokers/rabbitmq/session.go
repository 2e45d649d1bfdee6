package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Limits of a connection.
const (
	publishLimit = time.Minute     // of a call whose context has no sooner end
	closeLimit   = 2 * time.Second // of a polite farewell
	blockedLimit = 2 * time.Second // for answers, once the server has blocked the connection
	window       = 1024            // records without an answer on a channel
	smallBytes   = 128 << 10       // payloads that every server is taken to allow
)

// session is a connection with its channels. One call of Publish has it at a time.
type session struct {
	conn    *amqp.Connection
	wire    *wire
	lanes   []*lane
	blocked chan struct{} // closed when the server blocks the connection
	ended   chan struct{} // closed when the watcher has ended
}

// openSession connects and opens the channels. ctx limits all of it.
func openSession(ctx context.Context, cfg Config) (*session, error) {
	s := &session{blocked: make(chan struct{}), ended: make(chan struct{})}
	var stop func() bool
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(cfg.Name)
	conf := amqp.Config{
		Heartbeat: cfg.Heartbeat, Properties: props, ChannelMax: 64,
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s.wire = &wire{Conn: c}
			stop = context.AfterFunc(ctx, s.wire.kill)
			return s.wire, nil
		},
	}
	if cfg.TLS != nil {
		conf.TLSClientConfig = cfg.TLS.Clone()
	}
	conn, err := amqp.DialConfig(cfg.URL, conf)
	if err == nil {
		s.conn = conn
		go s.watch(conn.NotifyBlocked(make(chan amqp.Blocking, 4)))
		err = s.openLanes(cfg.Channels)
	}
	if stop != nil && !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return s, nil
	}
	if s.wire != nil {
		s.wire.kill()
	}
	if s.conn != nil {
		s.close()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return nil, err
}

func (s *session) openLanes(n int) error {
	for range n {
		l := &lane{session: s}
		if err := l.open(); err != nil {
			return err
		}
		s.lanes = append(s.lanes, l)
	}
	return nil
}

// watch hears of the connection being blocked. It ends with the connection.
func (s *session) watch(events <-chan amqp.Blocking) {
	defer close(s.ended)
	heard := false
	for e := range events {
		if e.Active && !heard {
			heard = true
			close(s.blocked)
		}
	}
}

// close says farewell, for closeLimit at most, and returns when nothing of the
// connection is left.
func (s *session) close() {
	timer := time.AfterFunc(2*closeLimit, s.wire.kill)
	defer timer.Stop()
	_ = s.conn.CloseDeadline(time.Now().Add(closeLimit))
	s.wire.kill()
	<-s.ended
}

// lane is a channel in confirm mode, and what is known of the server by it.
type lane struct {
	session *session
	ch      *amqp.Channel

	confirms chan amqp.Confirmation
	returns  chan amqp.Return
	closed   chan *amqp.Error

	proven   map[string]bool // exchanges that have taken a record
	declared map[string]bool // topics
	size     int             // payloads up to here are taken
}

var errNoConfirms = errors.New("rabbitmq: the channel is not in confirm mode")

// open opens the channel, or another after an error. It hangs until the wire is
// killed where the server does.
func (l *lane) open() error {
	ch, err := l.session.conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("%w: %w", errNoConfirms, err)
	}
	l.ch = ch
	// A full one makes the client wait, and then drop what it was to tell.
	l.confirms = ch.NotifyPublish(make(chan amqp.Confirmation, window+1))
	l.returns = ch.NotifyReturn(make(chan amqp.Return, window+1))
	l.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	l.proven, l.declared, l.size = map[string]bool{}, map[string]bool{}, smallBytes
	return nil
}
