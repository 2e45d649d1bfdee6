package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outmill/outmill/backends"
)

// run is what one lane does in one call.
type run struct {
	*publish
	lane *lane

	ready   []int    // heads of chains, which may go
	flight  []flying // in the order they were sent
	alone   bool     // the one in flight may cost the channel
	refused map[string]error
	until   time.Time // nothing is sent after it; zero: no limit
	sound   bool
}

// loop sends and takes answers until nothing is left, or the lane or the time is
// at its end. It settles every record of the lane.
func (r *run) loop(ctx context.Context) {
	var why error
	for {
		if why == nil {
			why = r.send(ctx)
		}
		if len(r.flight) == 0 {
			break
		}
		if !r.wait(ctx) {
			if why = r.died(ctx); why != nil {
				break
			}
		}
	}
	for _, i := range r.ready {
		r.leave(i, why)
	}
	r.ready = nil
}

// send puts out what may go. Its error says why nothing more will.
func (r *run) send(ctx context.Context) error {
	if r.alone || len(r.ready) == 0 {
		return nil
	}
	w := r.session.wire
	w.hold()
	defer w.release()
	for len(r.ready) > 0 && len(r.flight) < window {
		select {
		case <-r.session.blocked:
			return errBlocked
		default:
		}
		if ctx.Err() != nil || !r.until.IsZero() && time.Now().After(r.until) {
			return errTime
		}
		i := r.ready[0]
		rec := &r.records[i]
		exchange, key := r.cfg.Topology.Exchange(rec.Topic), r.cfg.Topology.RoutingKey(rec.Topic)
		if f := r.fault(rec, exchange, key); f.state != 0 {
			r.ready = r.ready[1:]
			r.fail(i, f.state, f.err)
			continue
		}
		// What may cost the channel goes alone: then it is known whose fault that was.
		alone := !r.lane.proven[exchange] || len(rec.Payload) > r.lane.size || r.cfg.Declare && !r.lane.declared[rec.Topic]
		if alone && len(r.flight) > 0 {
			return nil
		}
		if r.cfg.Declare && !r.lane.declared[rec.Topic] {
			if err := r.declare(rec.Topic); err != nil {
				r.ready = r.ready[1:]
				r.fail(i, backends.Rejected, err)
				continue
			}
		}
		r.ready = r.ready[1:]
		if !r.put(i, exchange, key) || alone {
			r.alone = alone
			return nil
		}
	}
	return nil
}

// put writes a record. It is in flight whatever comes of it: a failed write may
// have left.
func (r *run) put(i int, exchange, key string) bool {
	confirm, err := r.lane.ch.PublishWithDeferredConfirm(exchange, key, true, false, publishing(&r.records[i]))
	r.flight = append(r.flight, flying{index: i, exchange: exchange, key: key, confirm: confirm})
	return err == nil
}

// wait takes answers, at least one. It is false when no more will come.
func (r *run) wait(ctx context.Context) bool {
	blocked := r.session.blocked
	var limit <-chan time.Time
	for {
		select {
		case c, ok := <-r.lane.confirms:
			if !ok {
				return false
			}
			r.take(c)
			return r.drain()
		case <-ctx.Done():
			return false
		case <-blocked:
			blocked = nil
			timer := time.NewTimer(blockedLimit)
			defer timer.Stop()
			limit = timer.C
		case <-limit:
			return false
		}
	}
}

// drain takes the answers that are there.
func (r *run) drain() bool {
	for len(r.flight) > 0 {
		select {
		case c, ok := <-r.lane.confirms:
			if !ok {
				return false
			}
			r.take(c)
		default:
			return true
		}
	}
	return true
}

// take takes the answer for the oldest record in flight: the client tells
// answers in order.
func (r *run) take(c amqp.Confirmation) {
	r.collect()
	if len(r.flight) == 0 || r.flight[0].confirm == nil || r.flight[0].confirm.DeliveryTag != c.DeliveryTag {
		return // of no record of this call
	}
	f := r.flight[0]
	r.flight = r.flight[1:]
	r.settle(f, c.Ack)
	if len(r.flight) == 0 {
		r.alone = false
	}
}

// collect takes in what the server returned. A return comes before its
// confirmation, in the order of sending.
func (r *run) collect() {
	for {
		select {
		case x, ok := <-r.lane.returns:
			if !ok {
				return
			}
			for n := range r.flight {
				f := &r.flight[n]
				if f.returned == nil && r.records[f.index].MessageID == x.MessageId && f.exchange == x.Exchange && f.key == x.RoutingKey {
					f.returned = &x
					break
				}
			}
		default:
			return
		}
	}
}

// settle settles a record by the server's word, and lets its successor go.
func (r *run) settle(f flying, ack bool) {
	i := f.index
	switch {
	case f.returned != nil:
		r.lane.proven[f.exchange] = true
		err := fmt.Errorf("rabbitmq: no queue gets it (%d %s): bind one to the exchange", f.returned.ReplyCode, f.returned.ReplyText)
		if r.cfg.HoldUnroutable {
			err = backends.Unavailable(err)
		} else {
			err = backends.Permanent(err)
		}
		r.fail(i, backends.Rejected, err)
	case !ack:
		r.fail(i, backends.Rejected, backends.Unavailable(errors.New("rabbitmq: a queue refused it (nack): it is full, or has failed")))
	default:
		r.lane.proven[f.exchange] = true
		r.lane.size = max(r.lane.size, len(r.records[i].Payload))
		if next := r.next[i]; next != none {
			r.ready = append(r.ready, next)
		}
	}
}

// died settles what is in flight when no more answers come. Its error says why
// the lane cannot go on; nil: it has a new channel.
func (r *run) died(ctx context.Context) error {
	r.collect()
	cause, lost := r.cause(ctx)
	for n, f := range r.flight {
		switch {
		case f.confirm != nil && f.confirm.Acked():
			r.settle(f, true)
		case !lost && r.alone && n == 0 && r.blame(f, cause):
		default:
			r.fail(f.index, backends.Unknown, backends.Unavailable(fmt.Errorf("rabbitmq: no answer: %w", cause)))
		}
	}
	r.flight, r.alone = nil, false
	if lost {
		r.sound = false
		return backends.Unavailable(fmt.Errorf("rabbitmq: the connection is lost: %w", cause))
	}
	if err := r.lane.open(); err != nil {
		r.sound = false
		return backends.Unavailable(fmt.Errorf("rabbitmq: no new channel: %w", err))
	}
	return nil
}

// cause tells why no more answers come, and whether the connection is of no more use.
func (r *run) cause(ctx context.Context) (err error, lost bool) {
	if cause := context.Cause(ctx); cause != nil {
		return cause, true
	}
	select {
	case e := <-r.lane.closed: // closed without an error when the connection is closed from here
		if e == nil {
			e = amqp.ErrClosed
		}
		return e, r.session.conn.IsClosed()
	default:
		return errBlocked, true
	}
}

// blame settles the one record that cost the channel. It is false where the
// server's word is not about it.
func (r *run) blame(f flying, cause error) bool {
	var e *amqp.Error
	if !errors.As(cause, &e) {
		return false
	}
	switch e.Code {
	case amqp.NotFound:
		r.refused[f.exchange] = backends.Permanent(fmt.Errorf("rabbitmq: %w: create the exchange", e))
		r.fail(f.index, backends.Rejected, r.refused[f.exchange])
	case amqp.AccessRefused:
		// An operator mends this; the records are as good as before.
		r.refused[f.exchange] = backends.Unavailable(fmt.Errorf("rabbitmq: %w: grant the user write on the exchange", e))
		r.fail(f.index, backends.Rejected, r.refused[f.exchange])
	case amqp.PreconditionFailed, amqp.ContentTooLarge:
		r.fail(f.index, backends.Rejected, backends.Permanent(fmt.Errorf("rabbitmq: %w", e)))
	default:
		return false
	}
	return true
}

// declare makes what a topic needs, on a channel of its own, which a refusal costs.
func (r *run) declare(topic string) error {
	r.session.wire.release()
	defer r.session.wire.hold()
	ch, err := r.session.conn.Channel()
	if err == nil {
		if err = r.cfg.Topology.declare(ch, topic); err == nil {
			err = ch.Close()
		}
	}
	if err != nil {
		return backends.Unavailable(fmt.Errorf("rabbitmq: declare: %w", err))
	}
	r.lane.declared[topic] = true
	return nil
}
