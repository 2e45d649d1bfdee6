package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
)

// publish is one call of Publish.
type publish struct {
	cfg     Config
	session *session
	records []backends.Record
	encoded []kgo.Record
	sizes   []int

	groups  [][]int          // what is still to be sent, in order
	failed  map[int]failure  // by index
	stopped map[string]bool  // aggregates of which a record was not accepted
	blocked map[string]error // topics that cannot be reached
	sound   bool             // the client can be used again
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
	p.encoded, p.sizes = encode(records)
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
		if size += p.sizes[i]; len(wave) > 0 && (size > p.cfg.MaxMessageBytes-batchOverhead || r.Aggregate != "" && seen && topic != r.Topic) {
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
	case p.sizes[i] > p.cfg.MaxMessageBytes-batchOverhead:
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("kafka: the record takes %d bytes, MaxMessageBytes allows %d",
			p.sizes[i]+batchOverhead, p.cfg.MaxMessageBytes)))
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

// place is a partition: its records of a wave were one batch.
type place struct {
	topic     string
	partition int32
}

// take takes the answers of a wave in.
//
// A batch that was refused on account of one record is refused as a whole.
// Its records are sent again by halves, in order, until that one stands alone:
// the others have done nothing wrong.
func (p *publish) take(ctx context.Context, wave []int, errs []error) {
	together := map[place]int{}
	var again []int
	for n, i := range wave {
		if errs[n] != nil && aboutOneRecord(errs[n]) {
			together[p.placeOf(i)]++
		}
	}
	for n, i := range wave {
		err := errs[n]
		switch {
		case err == nil:
		case aboutOneRecord(err) && together[p.placeOf(i)] > 1:
			again = append(again, i)
		default:
			p.classify(ctx, i, err)
		}
	}
	if len(again) > 0 {
		half := len(again) / 2
		p.reset(again)
		p.groups = append([][]int{again[:half], again[half:]}, p.groups...)
	}
}

// placeOf is where a record went.
func (p *publish) placeOf(i int) place { return place{p.records[i].Topic, p.encoded[i].Partition} }

// reset makes records as they were before the client had them.
func (p *publish) reset(indexes []int) {
	for _, i := range indexes {
		e := &p.encoded[i]
		*e = kgo.Record{Partition: nowhere, Topic: e.Topic, Key: e.Key, Value: e.Value, Headers: e.Headers}
	}
}

// aboutOneRecord tells errors that one record of a batch causes.
func aboutOneRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp) ||
		errors.Is(err, kerr.CorruptMessage) || errors.Is(err, kerr.PolicyViolation)
}

// missing reports whether the cluster knows of no such topic. A broker may say
// the same of a topic that the cluster knows, when it was made a moment ago or
// is moving: then the client had a place for the record.
func (p *publish) missing(i int, err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) && p.encoded[i].Partition == nowhere
}

// classify settles a record that was not accepted.
func (p *publish) classify(ctx context.Context, i int, err error) {
	err = fmt.Errorf("kafka: %w", err)
	topic := p.records[i].Topic
	switch {
	case aboutOneRecord(err):
		p.fail(i, backends.Rejected, backends.Permanent(err))
	case p.missing(i, err) && p.cfg.AllowAutoTopicCreation:
		// It is being made, which may take longer than the client asks.
		p.fail(i, backends.Rejected, backends.Unavailable(fmt.Errorf("%w: the topic is not there yet", err)))
		p.blocked[topic] = backends.Unavailable(err)
	case errors.Is(err, kerr.InvalidTopicException), p.missing(i, err):
		p.fail(i, backends.Rejected, backends.Permanent(fmt.Errorf("%w: create the topic", err)))
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		// An operator mends this; the records are as good as before.
		p.fail(i, backends.Rejected, backends.Unavailable(fmt.Errorf("%w: grant Write to the user", err)))
		p.blocked[topic] = backends.Unavailable(err)
	case errors.Is(err, errNotLeft):
		p.fail(i, backends.NotSent, backends.Unavailable(fmt.Errorf("%w: %w", err, context.Cause(ctx))))
		p.sound = false
	default:
		// It may be there. Whatever the client's state is now, a new one starts
		// clean; partitions of other topics have given their answers.
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		p.fail(i, backends.Unknown, backends.Unavailable(err))
		p.blocked[topic] = backends.Unavailable(err)
		p.sound = p.sound && errors.Is(err, kerr.NotEnoughReplicas)
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
