package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// batch is the record batch of a partition within a wave.
type batch struct {
	at       place
	leader   int32
	messages []int // of the wave, in order
	bytes    []byte
	err      error // of the last attempt; nil once it is accepted
	open     bool  // to be sent, or sent again
	unsure   bool  // an attempt may have been written
}

var errNoAnswer = errors.New("no answer came in time")

// send sends a wave: one record batch for each partition, each with one request
// on its way at most, until each has its answer or ctx ends.
//
// A request that got no answer is repeated as it was, with its sequence number:
//  1. A request is written, and the connection is cut.
//  2. The same batch goes out by another connection.
//  3. The first arrives late. It has the number of the second: the cluster
//     answers both, and writes one.
//
// A batch that may have been written never gets another number in this session.
func (p *publish) send(ctx context.Context, wave []int) {
	batches, placed := p.place(ctx, wave)
	if !placed {
		return
	}
	for attempt := 0; ; attempt++ {
		p.attempt(ctx, batches)
		open := false
		for _, b := range batches {
			open = open || b.open
		}
		if !open || attempt == retries || !wait(ctx, retryPause) {
			break
		}
		p.findLeaders(ctx, batches)
	}
	for _, b := range batches {
		if b.err == nil && !b.open {
			p.session.advance(b.at, len(b.messages))
		}
		if !b.unsure { // a request without an answer may still be written from it
			p.session.spare = append(p.session.spare, b.bytes)
		}
	}
	p.take(ctx, batches)
}

// place gives each message of a wave its partition, for good, and makes the
// record batches. A message that gets none fails.
func (p *publish) place(ctx context.Context, wave []int) ([]*batch, bool) {
	if err := p.session.learn(ctx, p.topicsOf(wave)); err != nil {
		p.notSent(wave, fmt.Errorf("the topics' partitions cannot be learned: %w", err))
		p.sound = false
		return nil, false
	}
	keyless, keyed := rand.Int32(), &kgo.Record{}
	batches, by := []*batch(nil), map[place]*batch{}
	for _, i := range wave {
		r, m := &p.records[i], &p.messages[i]
		t := p.session.topics[r.Topic]
		if t == nil || t.err != nil {
			p.unplaced(i, t)
			continue
		}
		if n := len(t.leaders); m.key == nil { // one partition for all of a wave, another for the next
			m.partition = keyless % int32(n)
		} else {
			keyed.Key = m.key
			m.partition = int32(t.hash.Partition(keyed, n))
		}
		at := place{r.Topic, m.partition}
		b := by[at]
		if b == nil {
			b = &batch{at: at, leader: t.leaders[m.partition], open: true}
			by[at] = b
			batches = append(batches, b)
		}
		b.messages = append(b.messages, i)
	}
	now := time.Now()
	for _, b := range batches {
		b.bytes = encodeBatch(p.session.buffer(), p.messages, b.messages, now, p.session.producer, p.session.sequences[b.at], p.session.compressor)
	}
	return batches, true
}

func (p *publish) topicsOf(wave []int) []string {
	var names []string
	last := ""
	for _, i := range wave {
		if name := p.records[i].Topic; name != last && !slices.Contains(names, name) {
			names = append(names, name)
			last = name
		}
	}
	return names
}

// attempt sends the open batches, a request to each leader.
func (p *publish) attempt(ctx context.Context, batches []*batch) {
	leaders := map[int32][]*batch{}
	for _, b := range batches {
		switch {
		case !b.open:
		case b.leader < 0:
			b.err = kerr.LeaderNotAvailable
		default:
			leaders[b.leader] = append(leaders[b.leader], b)
		}
	}
	var wg sync.WaitGroup
	for leader, group := range leaders {
		if len(leaders) == 1 {
			p.request(ctx, leader, group)
			break
		}
		wg.Go(func() { p.request(ctx, leader, group) })
	}
	wg.Wait() // each ends with ctx
}

// request sends batches to their leader and takes the answers.
func (p *publish) request(ctx context.Context, leader int32, batches []*batch) {
	resp, err := p.session.produce(ctx, leader, batches)
	if err != nil {
		for _, b := range batches {
			b.err, b.unsure = err, true
		}
		return
	}
	codes := map[place]int16{}
	for i := range resp.Topics {
		for _, rp := range resp.Topics[i].Partitions {
			codes[place{resp.Topics[i].Topic, rp.Partition}] = rp.ErrorCode
		}
	}
	for _, b := range batches {
		code, answered := codes[b.at]
		if !answered {
			b.err, b.unsure = errNoAnswer, true
			continue
		}
		b.answered(kerr.ErrorForCode(code))
	}
}

// answered takes in the cluster's answer.
func (b *batch) answered(err error) {
	switch {
	case err == nil, errors.Is(err, kerr.DuplicateSequenceNumber): // it is there
		b.err, b.open = nil, false
	case errors.Is(err, kerr.RequestTimedOut), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		b.err, b.unsure = err, true // it is with the leader, and perhaps with nobody else
	case aboutProducer(err):
		b.err, b.unsure, b.open = err, true, false
	case aboutOneRecord(err) || !kerr.IsRetriable(err):
		b.err, b.open = err, false
	default:
		b.err = err
	}
}

// aboutProducer tells errors that say nothing of whether the batch is there: the
// cluster's memory of this producer is not ours.
func aboutProducer(err error) bool {
	return errors.Is(err, kerr.OutOfOrderSequenceNumber) || errors.Is(err, kerr.UnknownProducerID) ||
		errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidProducerIDMapping) ||
		errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.UnknownServerError) || errors.Is(err, kerr.KafkaStorageError)
}

// findLeaders asks where the open batches' partitions are now. Where that is not
// to be learned, they stay where they were.
func (p *publish) findLeaders(ctx context.Context, batches []*batch) {
	var names []string
	for _, b := range batches {
		if b.open && !slices.Contains(names, b.at.topic) {
			p.session.forget(b.at.topic)
			names = append(names, b.at.topic)
		}
	}
	if p.session.learn(ctx, names) != nil {
		return
	}
	for _, b := range batches {
		if t := p.session.topics[b.at.topic]; b.open && t != nil && t.err == nil && int(b.at.partition) < len(t.leaders) {
			b.leader = t.leaders[b.at.partition]
		}
	}
}

// produce sends one request. The caller's ctx ends the wait, not the request.
func (s *session) produce(ctx context.Context, leader int32, batches []*batch) (*kmsg.ProduceResponse, error) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(ackLimit.Milliseconds())
	at := map[string]int{}
	for _, b := range batches {
		n, ok := at[b.at.topic]
		if !ok {
			n = len(req.Topics)
			at[b.at.topic] = n
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic = b.at.topic
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = b.at.partition, b.bytes
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
	return req.RequestWith(ctx, s.client.Broker(int(leader)))
}
