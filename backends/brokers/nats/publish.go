package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outmill/outmill/backends"
)

// publish is one call of Publish.
type publish struct {
	cfg     Config
	session *session
	records []backends.Record

	ready   []int          // may be sent, in order
	next    []int          // by index: what follows in the aggregate; 0: nothing
	waiting map[uint64]int // sent, by the token of the answer
	topics  map[string]*topic
	failed  map[int]failure
	sound   bool // the session can be used again
}

// topic is what this call knows of one.
type topic struct {
	waiting int
	heard   time.Time // when it gave a sign, or was first sent to
	err     error     // why it takes nothing more in this call
	state   backends.State
}

type failure struct {
	state backends.State
	err   error
}

// Why records are not sent, or have no answer.
var (
	errBehind   = errors.New("nats: an earlier record of the aggregate was not accepted")
	errClosed   = errors.New("nats: the connection has ended")
	errNoAnswer = errors.New("nats: no acknowledgement came in time: is the subject a stream's?")
)

func newPublish(cfg Config, s *session, records []backends.Record) *publish {
	p := &publish{
		cfg: cfg, session: s, records: records, sound: true,
		ready: make([]int, 0, len(records)), next: make([]int, len(records)),
		waiting: make(map[uint64]int, min(len(records), cfg.MaxPending)), topics: map[string]*topic{}, failed: map[int]failure{},
	}
	last := make(map[string]int, len(records))
	for i := range records {
		before, follows := last[records[i].Aggregate]
		if a := records[i].Aggregate; a != "" {
			last[a] = i
		}
		if follows {
			p.next[before] = i
		} else {
			p.ready = append(p.ready, i)
		}
	}
	return p
}

// run sends and takes answers until each record has one, nothing more can come,
// or ctx ends.
//
// Of an aggregate one record is on its way. Were there two, this could happen:
//  1. The stream is full and the first is refused.
//  2. A consumer makes room.
//  3. The second is accepted: order is lost.
func (p *publish) run(ctx context.Context) {
	look := time.NewTicker(max(p.cfg.AckTimeout/10, time.Millisecond))
	defer look.Stop()
	for ctx.Err() == nil {
		p.sendReady()
		if len(p.waiting) == 0 && len(p.ready) == 0 {
			return
		}
		if !p.sound && len(p.waiting) == 0 {
			break
		}
		select {
		case m := <-p.session.answers:
			p.take(ctx, m)
			for range len(p.session.answers) {
				p.take(ctx, <-p.session.answers)
			}
		case err := <-p.session.refused:
			p.hear(err)
		case now := <-look.C:
			p.giveUp(now)
		case <-p.session.closed:
			p.drain(ctx)
			p.end(errClosed)
			return
		case <-ctx.Done():
		}
	}
	cause := context.Cause(ctx)
	if cause == nil {
		cause = errClosed
	}
	p.end(cause)
}

// sendReady sends what may be sent. No more wait for answers than the session
// can hold.
func (p *publish) sendReady() {
	n := 0
	for ; n < len(p.ready) && len(p.waiting) < p.cfg.MaxPending && p.sound; n++ {
		p.sendOne(p.ready[n])
	}
	p.ready = p.ready[:copy(p.ready, p.ready[n:])]
}

func (p *publish) sendOne(i int) {
	r := &p.records[i]
	t := p.topics[r.Topic]
	if t == nil {
		t = &topic{}
		p.topics[r.Topic] = t
	}
	if t.err != nil {
		p.fail(i, t.state, t.err)
		return
	}
	m, err := encode(r)
	if err != nil {
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("nats: %w", err)))
		return
	}
	token, err := p.session.send(m)
	switch {
	case err == nil:
		if t.waiting == 0 {
			t.heard = time.Now()
		}
		t.waiting++
		p.waiting[token] = i
	case errors.Is(err, nats.ErrMaxPayload):
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("nats: the record takes more with its headers than the server's max_payload of %d bytes",
			p.session.conn.MaxPayload())))
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("nats: %w", err)))
	default: // a write that failed may have been a part of it, and of those before it
		p.sound = false
		p.fail(i, backends.Unknown, backends.Unavailable(fmt.Errorf("nats: %w", err)))
	}
}

// accepted lets the record behind an accepted one go.
func (p *publish) accepted(i int) {
	if n := p.next[i]; n != 0 {
		p.ready = append(p.ready, n)
	}
}

// fail settles a record, and what follows it in its aggregate, which is not sent.
func (p *publish) fail(i int, state backends.State, err error) {
	p.failed[i] = failure{state, err}
	for n := p.next[i]; n != 0; n = p.next[n] {
		p.failed[n] = failure{backends.NotSent, errBehind}
	}
}

// giveUp settles the records of topics that gave no sign for too long. Others
// may still have answers to come.
func (p *publish) giveUp(now time.Time) {
	for name, t := range p.topics {
		if t.waiting > 0 && now.Sub(t.heard) >= p.cfg.AckTimeout {
			p.sound = false // an answer may come when nobody knows its record any more
			p.block(name, backends.Unavailable(errNoAnswer), backends.Unknown)
		}
	}
}

// hear takes in what the server says of no record in particular: that a subject
// may not be published to, or that answers may not be listened to.
func (p *publish) hear(err error) {
	p.sound = p.sound && errors.Is(err, nats.ErrPermissionViolation)
	for name, t := range p.topics {
		switch {
		case t.waiting == 0:
		case refers(err, name):
			p.block(name, backends.Unavailable(fmt.Errorf("nats: may not publish to the topic's subject: grant it to the user: %w", err)), backends.Rejected)
		case refers(err, p.session.prefix+"*"):
			p.sound = false
			p.block(name, backends.Unavailable(fmt.Errorf("nats: may not listen to answers: grant _INBOX.> to the user: %w", err)), backends.Unknown)
		}
	}
}

// block gives a topic up: what waits for its answer has this state. What would
// follow is not sent, or is refused where the topic does not exist.
func (p *publish) block(name string, err error, state backends.State) {
	t := p.topics[name]
	t.err, t.waiting, t.state = err, 0, backends.NotSent
	if backends.ClassOf(err) == backends.PermanentFailure {
		t.state = backends.Rejected
	}
	for token, i := range p.waiting {
		if p.records[i].Topic == name {
			delete(p.waiting, token)
			p.fail(i, state, err)
		}
	}
}

// drain takes the answers that came before the connection ended.
func (p *publish) drain(ctx context.Context) {
	for {
		select {
		case m := <-p.session.answers:
			p.take(ctx, m)
		default:
			return
		}
	}
}

// end settles whatever has no answer.
func (p *publish) end(cause error) {
	p.sound = p.sound && len(p.waiting) == 0
	for _, i := range p.waiting {
		p.fail(i, backends.Unknown, backends.Unavailable(cause))
	}
	clear(p.waiting)
	for _, i := range p.ready {
		p.fail(i, backends.NotSent, backends.Unavailable(cause))
	}
	p.ready = nil
}

// answer makes the broker's answer of what failed.
func (p *publish) answer() error {
	if len(p.failed) == 0 {
		return nil
	}
	out := &backends.PartialError{Failures: make([]backends.Failure, 0, len(p.failed))}
	for i := range p.records {
		if f, ok := p.failed[i]; ok {
			out.Failures = append(out.Failures, backends.Failure{Index: i, State: f.state, Err: f.err})
		}
	}
	return out
}
