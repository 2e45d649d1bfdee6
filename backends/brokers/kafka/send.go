package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// session is a client with the wave that it sends. One call of Publish has it at
// a time.
type session struct {
	client *kgo.Client
	wave   atomic.Pointer[answers]
}

func newSession(cfg Config) (*session, error) {
	s := &session{}
	client, err := kgo.NewClient(append(cfg.options(), kgo.WithHooks(s))...) // options fresh: clients sort them in place
	s.client = client
	return s, err
}

// OnProduceRecordPartitioned is the client's word that a record has its place
// and leaves with the next flush.
func (s *session) OnProduceRecordPartitioned(*kgo.Record, int32) { s.wave.Load().place() }

// Why there is no answer.
var (
	errNoAnswer = errors.New("kafka: the broker did not answer in time")
	errNotLeft  = errors.New("kafka: the topic's partitions could not be learned in time")
)

// send produces a wave and waits for every answer, or for ctx.
//
// Nothing may leave before each record has its place:
//  1. The client does not know the topic and keeps the records back.
//  2. A flush begins, and the topic becomes known.
//  3. The client places the records one by one; since it flushes, the first
//     leave as a record batch, and the rest follow as another.
//  4. The first batch is refused, the second accepted: order is lost.
//
// The client answers in its own time: it cannot take back a record that is on
// its way. So the answers go to a place of their own, which is let go when ctx
// ends.
func (p *publish) send(ctx context.Context, wave []int) {
	a := newAnswers(len(wave))
	p.session.wave.Store(a)
	for n, i := range wave {
		p.session.client.Produce(ctx, &p.encoded[i], func(r *kgo.Record, err error) {
			if r.Partition == nowhere {
				a.place() // it never gets one
			}
			a.set(n, err)
		})
	}
	select {
	case <-a.placed:
		a.left(errNoAnswer)
		if p.session.client.Flush(ctx) == nil {
			a.wait(ctx) // not long: a flush returns when all promises are kept
		}
	case <-ctx.Done():
	}
	p.take(ctx, wave, a.close())
}

// answers collects what becomes of a wave's records.
type answers struct {
	unplaced atomic.Int64
	placed   chan struct{} // closed when each record has its place, or never gets one

	mu      sync.Mutex
	closed  bool
	waiting int
	errs    []error
	done    chan struct{}
}

func newAnswers(n int) *answers {
	a := &answers{placed: make(chan struct{}), waiting: n, errs: make([]error, n), done: make(chan struct{})}
	a.unplaced.Store(int64(n))
	for i := range a.errs {
		a.errs[i] = errNotLeft
	}
	return a
}

func (a *answers) place() {
	if a.unplaced.Add(-1) == 0 {
		close(a.placed)
	}
}

// left says what is known from now on of records without an answer.
func (a *answers) left(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, old := range a.errs {
		if old == errNotLeft { //nolint:errorlint // the very value, which only newAnswers sets
			a.errs[n] = err
		}
	}
}

func (a *answers) set(n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.errs[n] = err
	if a.waiting--; a.waiting == 0 {
		close(a.done)
	}
}

func (a *answers) wait(ctx context.Context) {
	select {
	case <-a.done:
	case <-ctx.Done():
	}
}

func (a *answers) close() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return a.errs
}
