package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/outmill/outmill/backends"
)

// publish is one call of Publish.
type publish struct {
	cfg     Config
	session *session
	records []backends.Record
	entries []entry

	left    []int            // not yet settled, in order
	failed  map[int]failure  // by index
	stopped map[string]bool  // aggregates of which a record was not accepted
	blocked map[string]error // topics that take nothing now
	sound   bool             // the session can be used again
}

type failure struct {
	state backends.State
	err   error
}

// Why records are not sent.
var (
	errBehind  = errors.New("redis: an earlier record of the aggregate was not accepted")
	errUnknown = errors.New("redis: the outcome of an earlier transaction is unknown")
)

// waveBytes bounds a transaction: the server holds all of it in memory, and
// closes the connection at client-query-buffer-limit, by default 1 GiB.
const waveBytes = 16 << 20

func newPublish(cfg Config, s *session, records []backends.Record) *publish {
	p := &publish{
		cfg: cfg, session: s, records: records, sound: true,
		entries: encode(records, cfg.MaxMessageBytes), left: make([]int, len(records)),
		failed: map[int]failure{}, stopped: map[string]bool{}, blocked: map[string]error{},
	}
	for i := range p.left {
		p.left[i] = i
	}
	return p
}

// run sends wave after wave until nothing is left, an outcome is unknown or ctx ends.
func (p *publish) run(ctx context.Context) {
	for len(p.left) > 0 && ctx.Err() == nil && p.sound {
		wave := p.nextWave()
		if len(wave) > 0 {
			p.send(ctx, wave)
		}
	}
	cause := context.Cause(ctx)
	if cause == nil {
		cause = errUnknown
	}
	for _, i := range p.left {
		p.fail(i, backends.NotSent, backends.Unavailable(cause))
	}
}

// nextWave takes from what is left as many records as one transaction may hold,
// and of each aggregate only one topic's: a key of the wrong type refuses its
// own commands, and the others of the transaction are done all the same.
func (p *publish) nextWave() []int {
	wave := make([]int, 0, len(p.left))
	topics := make(map[string]string, len(p.left))
	size := 0
	for n, i := range p.left {
		r := &p.records[i]
		if !p.sendable(i) {
			continue
		}
		topic, seen := topics[r.Aggregate]
		if size += p.entries[i].size(r); len(wave) > 0 && (size > waveBytes || r.Aggregate != "" && seen && topic != r.Topic) {
			p.left = p.left[n:]
			return wave
		}
		topics[r.Aggregate] = r.Topic
		wave = append(wave, i)
	}
	p.left = nil
	return wave
}

// sendable settles what need not go to the server to be refused.
func (p *publish) sendable(i int) bool {
	r := &p.records[i]
	switch {
	case p.stopped[r.Aggregate] && r.Aggregate != "":
		p.fail(i, backends.NotSent, errBehind)
	case p.entries[i].err != nil:
		p.fail(i, backends.Rejected, backends.Permanent(p.entries[i].err))
	case p.blocked[r.Topic] != nil:
		p.fail(i, backends.NotSent, p.blocked[r.Topic])
	default:
		return true
	}
	return false
}

func (p *publish) fail(i int, state backends.State, err error) {
	p.failed[i] = failure{state, err}
	p.stopped[p.records[i].Aggregate] = true
}

// unsure settles a wave that may or may not have been taken.
func (p *publish) unsure(ctx context.Context, wave []int, err error) {
	p.sound = false
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	err = backends.Unavailable(fmt.Errorf("redis: %w", err))
	for _, i := range wave {
		p.fail(i, backends.Unknown, err)
	}
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
