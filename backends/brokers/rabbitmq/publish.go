package rabbitmq

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outmill/outmill/backends"
)

// publish is one call of Publish.
type publish struct {
	cfg     Config
	session *session
	records []backends.Record

	// By index. A lane touches those of its own records only.
	next   []int // the next record of the aggregate, or none
	failed []failure
}

type failure struct {
	state backends.State // 0: accepted, or not settled yet
	err   error
}

// none ends a chain.
const none = -1

// Why records are not sent.
var (
	errBehind  = errors.New("rabbitmq: an earlier record of the aggregate was not accepted")
	errTime    = backends.Unavailable(errors.New("rabbitmq: the time of the call was up"))
	errBlocked = backends.Unavailable(errors.New("rabbitmq: the server has blocked the connection: free its memory or disk"))
)

var seed = maphash.MakeSeed()

func newPublish(cfg Config, s *session, records []backends.Record) *publish {
	return &publish{
		cfg: cfg, session: s, records: records,
		next: make([]int, len(records)), failed: make([]failure, len(records)),
	}
}

// run publishes and reports whether the session can be used again.
//
// The records of an aggregate are a chain in one lane: each goes out when the one
// before it is accepted. The aggregates go side by side.
func (p *publish) run(ctx context.Context) (sound bool) {
	stop := context.AfterFunc(ctx, p.session.wire.kill) // the one way to end a write that hangs
	runs := p.split()
	if deadline, ok := ctx.Deadline(); ok {
		for _, r := range runs {
			// What is on its way by then has the rest of the time for its answer.
			r.until = deadline.Add(-time.Until(deadline) / 4)
		}
	}
	var wg sync.WaitGroup
	for _, r := range runs[1:] {
		wg.Go(func() { r.loop(ctx) })
	}
	runs[0].loop(ctx)
	wg.Wait()
	sound = stop()
	for _, r := range runs {
		sound = sound && r.sound
	}
	return sound
}

// split gives each lane its aggregates.
func (p *publish) split() []*run {
	runs := make([]*run, len(p.session.lanes))
	for i, l := range p.session.lanes {
		runs[i] = &run{publish: p, lane: l, refused: map[string]error{}, sound: true}
	}
	last := make(map[string]int, len(p.records))
	for i := range p.records {
		a := p.records[i].Aggregate
		p.next[i] = none
		if before, ok := last[a]; ok && a != "" {
			p.next[before] = i
		} else {
			r := runs[i%len(runs)]
			if a != "" {
				r = runs[maphash.String(seed, a)%uint64(len(runs))]
			}
			r.ready = append(r.ready, i)
		}
		last[a] = i
	}
	return runs
}

// fail settles a record that was not accepted, and what follows it in its aggregate.
func (p *publish) fail(i int, state backends.State, err error) {
	p.failed[i] = failure{state, err}
	for i = p.next[i]; i != none; i = p.next[i] {
		p.failed[i] = failure{backends.NotSent, errBehind}
	}
}

// leave settles a record that was not sent, and its aggregate, when a call ends early.
func (p *publish) leave(i int, err error) {
	for ; i != none; i = p.next[i] {
		p.failed[i] = failure{backends.NotSent, err}
	}
}

// answer makes the broker's answer of what failed.
func (p *publish) answer() error {
	var out *backends.PartialError
	for i, f := range p.failed {
		if f.state != 0 {
			if out == nil {
				out = &backends.PartialError{}
			}
			out.Failures = append(out.Failures, backends.Failure{Index: i, State: f.state, Err: f.err})
		}
	}
	if out == nil {
		return nil
	}
	return out
}

// flying is a record without an answer.
type flying struct {
	index         int
	exchange, key string
	confirm       *amqp.DeferredConfirmation
	returned      *amqp.Return
}
