package forwarder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

// worker repeats turns over its part of the lease: read, publish, settle.
type worker struct {
	*Forwarder
	run    *run
	number int
	reader backends.Reader

	probes   chan settlement // answers of probes under way, see probe
	probing  []string        // topics of those under way
	outcomes []backends.Outcome
	idle     time.Duration // the last wait, where the store gives no hints
	trouble  retryWait     // waits after failures of the store
}

// turn is what was read together. What becomes of it happens under ctx.
type turn struct {
	ctx   context.Context
	parts int // what is left of it: the worker's own part, and probes
}

// settlement is a probe that has been answered.
type settlement struct {
	turn    *turn
	lease   backends.Lease
	topic   string
	verdict verdict
}

func (f *Forwarder) newWorker(r *run, number int) *worker {
	return &worker{Forwarder: f, run: r, number: number, reader: f.store.Reader(), probes: make(chan settlement, maxProbes)}
}

// maxProbes is how many probes a worker may have under way. Topics beyond it
// wait for a place.
const maxProbes = 16

// loop works until the forwarder stops, then ends what it has begun.
func (w *worker) loop(soft, hard context.Context) {
	for soft.Err() == nil {
		hints := w.run.pacer.hints()
		lease, changed := w.run.keeper.take(w.number)
		wait := w.turn(soft, hard, lease)
		w.run.keeper.done(lease)
		if wait > 0 {
			w.run.pacer.wait(soft, hints, changed, wait)
		}
	}
	for len(w.probing) > 0 {
		select {
		case s := <-w.probes:
			w.settleProbe(hard, s)
		case <-hard.Done():
			return // the forwarder counts what is left
		}
	}
}

// turn is one round. It returns how long to wait before the next one.
func (w *worker) turn(soft, hard context.Context, lease backends.Lease) time.Duration {
	w.settleProbes(hard)
	if len(lease.Shards) == 0 {
		return w.cfg.PollMax
	}
	held, probes, next := w.held()
	ctx, records, err := w.read(lease, held)
	if err != nil {
		w.abandon(probes)
		w.log.warn(ctx, "records could not be read", err)
		return w.trouble.next()
	}
	if len(records) == 0 {
		w.abandon(probes)
		return w.idleWait(next)
	}
	t := &turn{ctx: ctx, parts: 1}
	defer w.finish(t)
	if soft.Err() != nil {
		w.abandon(probes)
		return 0
	}
	w.idle = 0
	w.trouble = retryWait{}
	return w.move(soft, hard, t, lease, records, probes)
}

// finish ends a part of a turn.
func (w *worker) finish(t *turn) {
	if t.parts--; t.parts == 0 {
		w.hooks.done(t.ctx)
	}
}

// held is what the breakers hold, and what is out on a probe of this worker:
//
// 1. The worker probes a topic; a batch of another worker, sent before the topic
// was held back, is accepted. The topic flows.
// 2. The worker reads. The records of the probe have no answer yet: they would
// be sent twice.
func (w *worker) held() (held, probes []string, next time.Time) {
	held, due, next := w.run.breakers.held(time.Now())
	for _, topic := range due {
		if len(probes) >= maxProbes-len(w.probing) || slices.Contains(w.probing, topic) {
			w.run.breakers.abandon(topic)
			held = append(held, topic)
			continue
		}
		probes = append(probes, topic)
	}
	for _, topic := range w.probing {
		if !slices.Contains(held, topic) {
			held = append(held, topic)
		}
	}
	return held, probes, next
}

// idleWait is how long to wait after a look that found nothing.
func (w *worker) idleWait(nextProbe time.Time) time.Duration {
	wait := w.cfg.PollMax
	if w.run.pacer.watch == nil {
		w.idle = min(max(2*w.idle, w.cfg.PollMin), w.cfg.PollMax)
		wait = w.idle
	}
	if !nextProbe.IsZero() {
		wait = min(wait, time.Until(nextProbe))
	}
	return max(wait, w.cfg.PollMin)
}

func (w *worker) abandon(probes []string) {
	for _, topic := range probes {
		w.run.breakers.abandon(topic)
	}
}

// read is not cut short by a stop: a cancelled statement costs a connection.
func (w *worker) read(lease backends.Lease, held []string) (context.Context, []backends.Record, error) {
	ctx, cancel := context.WithTimeoutCause(w.run.calls, storeTimeout, errReadTimeout)
	defer cancel()
	start := time.Now()
	records, err := w.reader.Read(ctx, lease, backends.Want{
		Limit: w.cfg.Batch, MaxBytes: w.cfg.BatchBytes, SkipTopics: held,
	})
	return w.hooks.read(w.run.calls, records, time.Since(start), err), records, err
}

// move publishes a batch and settles it. Records of topics that are being probed
// go separately, so that a topic which hangs holds up none but itself.
func (w *worker) move(soft, hard context.Context, t *turn, lease backends.Lease, records []backends.Record, probes []string) time.Duration {
	lease, ok := w.run.keeper.renewed(soft, lease, w.cfg.PublishTimeout+w.cfg.margin())
	if !ok {
		w.abandon(probes)
		return 0
	}
	// What belongs to a shard that was lost meanwhile is its new owner's.
	records = slices.DeleteFunc(records, func(r backends.Record) bool { _, held := lease.Epoch(r.Shard); return !held })
	refused, records := w.allowed(records)
	for _, topic := range probes {
		var mine []backends.Record
		mine, records = split(records, topic)
		if len(mine) == 0 {
			w.run.breakers.abandon(topic)
			continue
		}
		w.probe(hard, t, lease, topic, mine)
	}
	w.outcomes = append(w.outcomes[:0], refused...)
	if len(records) > 0 {
		v := w.publish(hard, t, records, w.outcomes)
		w.outcomes = v.outcomes
		w.report(v, "")
	}
	if len(w.outcomes) == 0 {
		return 0
	}
	if !w.settle(hard, t, lease, w.outcomes) {
		return w.trouble.next()
	}
	return 0
}

// split takes the records of a topic out of a batch, keeping the order of both.
func split(records []backends.Record, topic string) (of, others []backends.Record) {
	if !slices.ContainsFunc(records, func(r backends.Record) bool { return r.Topic == topic }) {
		return nil, records
	}
	for _, r := range records {
		if r.Topic == topic {
			of = append(of, r)
		} else {
			others = append(others, r)
		}
	}
	return of, others
}

// allowed takes out records of topics that may not be sent to, and those that
// wait behind one in their aggregate.
func (w *worker) allowed(records []backends.Record) (refused []backends.Outcome, rest []backends.Record) {
	if len(w.cfg.Allow) == 0 {
		return nil, records
	}
	behind := map[string]bool{}
	for i := range records {
		r := &records[i]
		switch {
		case !slices.Contains(w.cfg.Allow, r.Topic):
			refused = append(refused, w.judge.refused(r, errNotAllowed))
			if r.Aggregate != "" && w.cfg.Poison != Skip {
				behind[r.Aggregate] = true
			}
		case behind[r.Aggregate]:
			refused = append(refused, backends.Outcome{Record: r, Action: backends.Release, Err: errNotAllowed})
		default:
			rest = append(rest, *r)
		}
	}
	return refused, rest
}

// probe publishes a batch of one topic on a goroutine of its own, while the
// worker goes on without the topic. The worker settles the answer: a reader is
// used by one goroutine only. The records' shards stay in hand until then.
func (w *worker) probe(hard context.Context, t *turn, lease backends.Lease, topic string, records []backends.Record) {
	mine := lease.Only(func(shard int) bool {
		return slices.ContainsFunc(records, func(r backends.Record) bool { return r.Shard == shard })
	})
	w.run.keeper.keep(mine)
	w.probing = append(w.probing, topic)
	t.parts++
	w.run.wg.Go(func() {
		v := w.publish(hard, t, records, nil)
		w.probes <- settlement{turn: t, lease: mine, topic: topic, verdict: v} // has room for all
		w.run.pacer.wake()
	})
}

func (w *worker) settleProbes(hard context.Context) {
	for {
		select {
		case s := <-w.probes:
			w.settleProbe(hard, s)
		default:
			return
		}
	}
}

// settleProbe settles a probe's answer, and only then lets its topic go: read
// before that, its records would be sent again.
func (w *worker) settleProbe(hard context.Context, s settlement) {
	w.probing = slices.DeleteFunc(w.probing, func(t string) bool { return t == s.topic })
	w.settle(hard, s.turn, s.lease, s.verdict.outcomes)
	w.report(s.verdict, s.topic)
	w.run.keeper.done(s.lease)
	w.finish(s.turn)
}

// publish sends a batch and judges the answer.
func (w *worker) publish(hard context.Context, t *turn, records []backends.Record, outcomes []backends.Outcome) verdict {
	ctx, cut := context.WithCancelCause(t.ctx)
	defer cut(nil)
	defer context.AfterFunc(hard, func() { cut(context.Cause(hard)) })()
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.PublishTimeout, errPublishTimeout)
	defer cancel()
	ctx = w.hooks.publish(ctx, records)
	before := w.accepted.Load()
	start := time.Now()
	err := w.callBroker(ctx, records)
	w.hooks.published(ctx, records, time.Since(start), err)
	v := w.judge.judge(records, err, before, w.accepted.Load(), outcomes)
	var n int64
	for _, o := range v.outcomes {
		if o.Action == backends.Delivered {
			n++
		}
	}
	w.accepted.Add(n)
	return v
}

// callBroker turns a panic into an answer: nothing is known of any record.
func (w *worker) callBroker(ctx context.Context, records []backends.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the broker's adapter panicked with a value of type %T", p)
			w.log.warn(ctx, "publishing panicked", err)
		}
	}()
	return w.broker.Publish(ctx, records)
}

// report tells the breakers which topics were reached and which were not. probe
// is the topic that the batch was a probe of, if it was.
func (w *worker) report(v verdict, probe string) {
	now := time.Now()
	for topic := range v.reached {
		w.run.breakers.reached(topic)
	}
	for topic, err := range v.tripped {
		w.run.breakers.trip(topic, now, topic == probe, err)
	}
}

// settle records outcomes. While that fails it tries again for as long as the
// lease lasts, since otherwise what was delivered is sent again.
func (w *worker) settle(hard context.Context, t *turn, lease backends.Lease, outcomes []backends.Outcome) bool {
	parent := t.ctx
	wait := retryWait{}
	for {
		if parent.Err() != nil { // the broker returned too late
			return false
		}
		ctx, cancel := context.WithTimeoutCause(parent, w.settleLimit(hard), errSettleTimeout)
		err := w.reader.Settle(ctx, lease, outcomes)
		cancel()
		w.hooks.settled(parent, outcomes, err)
		if err == nil {
			w.logFailures(parent, outcomes)
			return true
		}
		w.log.warn(parent, "outcomes could not be recorded", err)
		if errors.Is(err, backends.ErrLeaseLost) {
			w.run.keeper.beatSoon()
			return true
		}
		pause := wait.next()
		if hard.Err() != nil || time.Until(lease.Deadline) < pause {
			return false
		}
		sleep(hard, pause)
		if fresh, ok := w.run.keeper.current(lease); ok {
			lease = fresh
		}
	}
}

// settleLimit is shorter once the time for an orderly stop is over.
func (w *worker) settleLimit(hard context.Context) time.Duration {
	if hard.Err() != nil {
		return w.cfg.grace()
	}
	return storeTimeout
}

// logFailures logs what became of records that failed, each under its own trace.
// An aggregate's name is often personal data and stays out.
func (w *worker) logFailures(ctx context.Context, outcomes []backends.Outcome) {
	for _, o := range outcomes {
		log, text := w.log.failed, "a record was given up: "+o.Action.String()
		switch o.Action {
		case backends.Park, backends.Skip:
		case backends.Retry:
			log, text = w.log.warn, "a record failed and will be tried again"
			if o.Record.Attempts%10 != 0 {
				log = w.log.debug
			}
		default:
			continue
		}
		log(w.hooks.record(ctx, o.Record), text, o.Err,
			"topic", o.Record.Topic, "message_id", o.Record.MessageID, "attempts", o.Record.Attempts+1)
	}
}
