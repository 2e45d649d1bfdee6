package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outmill/outmill/backends"
)

// publish is one call of Publish.
type publish struct {
	cfg      Config
	session  *session
	records  []backends.Record
	messages []message

	groups  [][]int          // what is still to be sent, in order
	failed  map[int]failure  // by index
	stopped map[string]bool  // aggregates of which a record was not accepted
	blocked map[string]error // topics that cannot be reached
	sound   bool             // the session can be used again
}

type failure struct {
	state backends.State
	err   error
}

// Why records are not sent.
var errBehind = errors.New("kafka: an earlier record of the aggregate was not accepted")

func newPublish(cfg Config, session *session, records []backends.Record) *publish {
	p := &publish{
		cfg: cfg, session: session, records: records, sound: true,
		failed: map[int]failure{}, stopped: map[string]bool{}, blocked: map[string]error{},
	}
	p.messages, session.bodies = encode(session.bodies, records)
	all := make([]int, len(records))
	for i := range all {
		all[i] = i
	}
	p.groups = [][]int{all}
	return p
}

// run sends wave after wave until nothing is left or ctx ends.
func (p *publish) run(ctx context.Context) {
	for len(p.groups) > 0 && ctx.Err() == nil && p.sound {
		wave, rest := p.nextWave(p.groups[0])
		p.groups = p.groups[1:]
		if len(rest) > 0 {
			p.groups = append([][]int{rest}, p.groups...)
		}
		if len(wave) > 0 {
			p.send(ctx, wave)
		}
	}
	cause := context.Cause(ctx)
	if cause == nil {
		cause = errors.New("kafka: an earlier outcome is unknown")
	}
	for _, group := range p.groups {
		for _, i := range group {
			p.fail(i, backends.NotSent, backends.Unavailable(cause))
		}
	}
}

// nextWave takes the head of a group: as many records as fit one record batch
// even if all go to one partition, and of each aggregate only one topic's,
// since two topics are two batches.
func (p *publish) nextWave(group []int) (wave, rest []int) {
	wave = make([]int, 0, len(group))
	topics := make(map[string]string, len(group))
	size := 0
	for n, i := range group {
		r := &p.records[i]
		if !p.sendable(i) {
			continue
		}
		topic, seen := topics[r.Aggregate]
		if size += p.messages[i].size(); len(wave) > 0 && (size > p.cfg.MaxMessageBytes-batchOverhead || r.Aggregate != "" && seen && topic != r.Topic) {
			return wave, group[n:]
		}
		topics[r.Aggregate] = r.Topic
		wave = append(wave, i)
	}
	return wave, nil
}

// sendable settles what need not go to the broker to be refused.
func (p *publish) sendable(i int) bool {
	r := &p.records[i]
	switch {
	case p.stopped[r.Aggregate] && r.Aggregate != "":
		p.fail(i, backends.NotSent, errBehind)
	case p.blocked[r.Topic] != nil:
		p.fail(i, backends.NotSent, p.blocked[r.Topic])
	case !validTopic(r.Topic):
		p.fail(i, backends.Rejected, backends.Permanent(errors.New("kafka: the topic's name is not valid: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")))
	case p.messages[i].size() > p.cfg.MaxMessageBytes-batchOverhead:
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("kafka: the record takes %d bytes, MaxMessageBytes allows %d",
			p.messages[i].size()+batchOverhead, p.cfg.MaxMessageBytes)))
	case r.Metadata.Get(uuidHeader) != "":
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("kafka: metadata %s is reserved for the message id", uuidHeader)))
	default:
		return true
	}
	return false
}

func (p *publish) fail(i int, state backends.State, err error) {
	p.failed[i] = failure{state, err}
	p.stopped[p.records[i].Aggregate] = true
}

// take takes the answers of a wave in.
//
// A batch that was refused on account of one record is refused as a whole.
// Its records are sent again by halves, in order, until that one stands alone:
// the others have done nothing wrong.
func (p *publish) take(ctx context.Context, batches []*batch) {
	var again []int
	for _, b := range batches {
		switch {
		case b.err == nil:
		case aboutOneRecord(b.err) && !b.unsure && len(b.messages) > 1:
			again = append(again, b.messages...)
		default:
			p.sound = p.sound && !b.unsure
			for _, i := range b.messages {
				p.classify(ctx, i, b)
			}
		}
	}
	if len(again) > 0 {
		slices.Sort(again) // the batch's order, whatever the partitions
		half := len(again) / 2
		p.groups = append([][]int{again[:half], again[half:]}, p.groups...)
	}
}

// aboutOneRecord tells errors that one record of a batch causes.
func aboutOneRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp) ||
		errors.Is(err, kerr.CorruptMessage) || errors.Is(err, kerr.PolicyViolation)
}

// unplaced settles a record whose topic cannot be reached. It was not sent.
func (p *publish) unplaced(i int, t *topic) {
	name, err := p.records[i].Topic, error(kerr.UnknownTopicOrPartition)
	if t != nil {
		err = t.err
	}
	switch {
	case p.forbidden(i, err):
		return
	case errors.Is(err, kerr.InvalidTopicException), missing(err) && !p.cfg.AllowAutoTopicCreation:
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("kafka: %w: create the topic", err)))
		return
	case missing(err): // it is being made, which may take longer than we ask
		err = fmt.Errorf("%w: the topic is not there yet", err)
	}
	p.blocked[name] = backends.Unavailable(fmt.Errorf("kafka: %w", err))
	p.fail(i, backends.Rejected, p.blocked[name])
}

// missing tells that the cluster knows of no such topic. A broker may say the
// same of one that the cluster knows, when it was made a moment ago or is
// moving: only the cluster's word counts.
func missing(err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) }

// forbidden settles a record that the user may not write. An operator mends
// that; the record is as good as before.
func (p *publish) forbidden(i int, err error) bool {
	if !errors.Is(err, kerr.TopicAuthorizationFailed) && !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return false
	}
	err = backends.Unavailable(fmt.Errorf("kafka: %w: grant Write to the user", err))
	p.blocked[p.records[i].Topic] = err
	p.fail(i, backends.Rejected, err)
	return true
}

// classify settles a record of a batch that was not accepted.
func (p *publish) classify(ctx context.Context, i int, b *batch) {
	err := fmt.Errorf("kafka: %w", b.err)
	switch {
	case b.unsure: // below
	case aboutOneRecord(err):
		p.fail(i, backends.Rejected, backends.Permanent(err))
		return
	case errors.Is(err, kerr.InvalidTopicException):
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("%w: create the topic", err)))
		return
	case p.forbidden(i, b.err):
		return
	}
	// Nothing more goes to the topic in this call. What it refused for a while it
	// may take with a later batch, in front of this one.
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	p.blocked[b.at.topic] = backends.Unavailable(err)
	p.fail(i, backends.Unknown, p.blocked[b.at.topic])
}

// notSent settles records that cannot be sent now.
func (p *publish) notSent(indexes []int, err error) {
	for _, i := range indexes {
		p.fail(i, backends.NotSent, backends.Unavailable(fmt.Errorf("kafka: %w", err)))
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
