package forwarder

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
)

// errNotAllowed is why a record is given up whose topic Allow does not list.
var errNotAllowed = backends.Permanent(errors.New("the topic is not on this forwarder's Allow list"))

// errNoReason stands for the error that an answer lacks.
var errNoReason = errors.New("the broker gave no reason")

// judge turns broker answers into outcomes.
type judge struct {
	cfg      Config
	suspects *suspects
}

// verdict is what one publish came to.
type verdict struct {
	outcomes []backends.Outcome
	reached  map[string]bool  // topics of which a record was accepted, or refused on its own account
	tripped  map[string]error // topics that could not be reached, with the reason
}

// judge decides on every record of a batch. before and now are how many records
// the broker had accepted, from all workers, when the batch was sent and when it
// was answered.
func (j judge) judge(records []backends.Record, err error, before, now int64, outcomes []backends.Outcome) verdict {
	failures := failuresOf(records, err)
	v := verdict{outcomes: outcomes, reached: map[string]bool{}, tripped: map[string]error{}}
	failed := map[string]bool{} // aggregates that a record of failed in this batch
	next := 0
	accepted := len(failures) < len(records)
	for i := range records {
		if next < len(failures) && failures[next].Index == i {
			next++
			continue
		}
		v.outcomes = append(v.outcomes, backends.Outcome{Record: &records[i], Action: backends.Delivered})
		v.reached[records[i].Topic] = true
		j.suspects.clear(records[i].Ref)
	}
	for _, f := range failures {
		r := &records[f.Index]
		if f.State == backends.NotSent && (r.Aggregate == "" || !failed[r.Aggregate]) {
			// It waits behind nothing: a topic of which nothing is sent cannot be reached.
			f.Err = backends.Unavailable(f.Err)
		}
		failed[r.Aggregate] = true
		j.fail(&v, r, f, accepted || now > before || f.State == backends.Rejected && j.suspects.again(r.Ref, now))
	}
	for topic := range v.reached {
		delete(v.tripped, topic)
	}
	for i := range v.outcomes {
		// A topic that is held back as a whole needs no wait for each record.
		if _, held := v.tripped[v.outcomes[i].Record.Topic]; held {
			v.outcomes[i].After = 0
		}
	}
	return v
}

// fail decides on one record that was not accepted.
func (j judge) fail(v *verdict, r *backends.Record, f backends.Failure, reachable bool) {
	class := backends.ClassOf(f.Err)
	unreachable := class == backends.UnavailableFailure ||
		class == backends.Retryable && (f.State == backends.Unknown || !reachable)
	switch {
	case f.State == backends.NotSent && class != backends.UnavailableFailure:
		// It waits behind a failed record of its aggregate.
		v.outcomes = append(v.outcomes, backends.Outcome{Record: r, Action: backends.Release, Err: f.Err})
	case f.State != backends.Rejected || unreachable:
		v.outcomes = append(v.outcomes, backends.Outcome{
			Record: r, Action: backends.Release, After: jitter(j.cfg.RetryMin), Err: f.Err,
		})
		v.tripped[r.Topic] = f.Err
	default:
		v.outcomes = append(v.outcomes, j.refused(r, f.Err))
		v.reached[r.Topic] = true
	}
}

// refused is the outcome of a record that was refused on its own account.
func (j judge) refused(r *backends.Record, err error) backends.Outcome {
	spent := j.cfg.MaxAttempts > 0 && r.Attempts+1 >= j.cfg.MaxAttempts
	if backends.ClassOf(err) == backends.PermanentFailure || spent {
		switch j.cfg.Poison {
		case Park:
			return backends.Outcome{Record: r, Action: backends.Park, Err: err}
		case Skip:
			return backends.Outcome{Record: r, Action: backends.Skip, Err: err}
		case Block: // as a failed attempt
		}
	}
	return backends.Outcome{Record: r, Action: backends.Retry, After: j.cfg.backoff(r.Attempts), Err: err}
}

// suspects are records that failed when nothing reached the broker, with how many
// it had accepted by then. A record that fails again although others have been
// accepted meanwhile is itself to blame:
//
// 1. A bad record is alone in its worker's batch. It may be the broker: no
// attempt is counted.
// 2. Another worker's records are accepted.
// 3. The bad record fails again. It was not the broker.
type suspects struct {
	mu   sync.Mutex
	seen map[backends.Ref]int64
}

// maxSuspects bounds the memory of an outage; beyond it all start again.
const maxSuspects = 100_000

func newSuspects() *suspects { return &suspects{seen: map[backends.Ref]int64{}} }

// again notes a failure and reports whether the record is to blame.
func (s *suspects) again(ref backends.Ref, accepted int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, seen := s.seen[ref]
	if len(s.seen) >= maxSuspects {
		clear(s.seen)
	}
	s.seen[ref] = accepted
	return seen && accepted > was
}

func (s *suspects) clear(ref backends.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) > 0 {
		delete(s.seen, ref)
	}
}

// backoff is the wait after a failed attempt that some went before.
func (c Config) backoff(before int) time.Duration {
	wait := c.RetryMin
	for i := 0; i < before && wait < c.RetryMax; i++ {
		wait *= 2
	}
	return jitter(min(wait, c.RetryMax))
}

// jitter cuts a wait by up to half, so that what failed together does not come
// back together.
func jitter(d time.Duration) time.Duration {
	if d < 2 {
		return d
	}
	return d - rand.N(d/2)
}

// failuresOf lists what was not accepted. An error that is no answer for single
// records, or one that does not fit the batch, says that nothing is known.
func failuresOf(records []backends.Record, err error) []backends.Failure {
	if err == nil {
		return nil
	}
	var partial *backends.PartialError
	switch {
	case !errors.As(err, &partial):
	case partial == nil: // its methods would panic
		err = errors.New("the broker's answer is a nil *PartialError")
	case fits(partial.Failures, len(records)):
		return explained(partial.Failures)
	default:
		err = fmt.Errorf("the broker's answer does not fit the batch of %d records: %w", len(records), err)
	}
	all := make([]backends.Failure, len(records))
	for i := range all {
		all[i] = backends.Failure{Index: i, State: backends.Unknown, Err: err}
	}
	return all
}

// explained gives an error to failures that have none. The slice stays as it is.
func explained(failures []backends.Failure) []backends.Failure {
	for i, f := range failures {
		if f.Err != nil {
			continue
		}
		failures = slices.Clone(failures)
		for j := range failures[i:] {
			if failures[i+j].Err == nil {
				failures[i+j].Err = errNoReason
			}
		}
		break
	}
	return failures
}

func fits(failures []backends.Failure, records int) bool {
	last := -1
	for _, f := range failures {
		if f.Index <= last || f.Index >= records {
			return false
		}
		last = f.Index
	}
	return true
}
