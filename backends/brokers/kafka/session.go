package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outmill/outmill/backends"
)

// session is a client with a producer identity. One call of Publish has it at a
// time: the sequences of a partition follow each other.
type session struct {
	cfg        Config
	client     *kgo.Client
	compressor kgo.Compressor // nil: none
	producer   producer
	sequences  map[place]int32 // of the next record
	topics     map[string]*topic

	bodies []byte   // of the call's messages
	spare  [][]byte // that no request holds
}

// place is a partition.
type place struct {
	topic     string
	partition int32
}

// topic is what the cluster says of a topic.
type topic struct {
	err     error // why it cannot be reached
	leaders []int32
	hash    kgo.TopicPartitioner
	asked   time.Time
}

// Limits on asking.
const (
	reachLimit  = 3 * time.Second // when no broker is there, the answer should come soon
	topicMaxAge = 5 * time.Minute // how late more partitions may be noticed
	topicAsks   = 3               // before a topic is missing
)

// newSession makes a session, which must be identified.
func newSession(cfg Config) (*session, error) {
	client, err := kgo.NewClient(cfg.options()...)
	if err != nil {
		return nil, fmt.Errorf("kafka: make a client: %w", err)
	}
	s := &session{cfg: cfg, client: client, sequences: map[place]int32{}, topics: map[string]*topic{}}
	if codec := codecs[cfg.Compression]; codec != kgo.NoCompression() {
		if s.compressor, err = kgo.DefaultCompressor(codec); err != nil {
			client.Close()
			return nil, fmt.Errorf("kafka: compression: %w", err)
		}
	}
	return s, nil
}

// identify gets an identity from the cluster: the first that a session asks it.
func (s *session) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachLimit, errNoBroker)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return unreachable(err)
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case err == nil:
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return backends.Unavailable(fmt.Errorf("kafka: %w: grant IdempotentWrite on the cluster to the user", err))
	default:
		return backends.Unavailable(fmt.Errorf("kafka: get a producer id: %w", err))
	}
	s.producer = producer{resp.ProducerID, resp.ProducerEpoch}
	return nil
}

var errNoBroker = errors.New("no broker answered in time")

func unreachable(err error) error {
	return backends.Unavailable(fmt.Errorf("kafka: no broker can be reached: %w", err))
}

// ping asks any broker for an answer.
func (s *session) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachLimit, errNoBroker)
	defer cancel()
	if err := s.client.Ping(ctx); err != nil {
		return unreachable(err)
	}
	return nil
}

// learn asks for what is not known of topics, or is old. A topic of which the
// cluster knows nothing is asked for again: it may have been made a moment ago.
func (s *session) learn(ctx context.Context, names []string) error {
	for ask := 1; ; ask++ {
		req := kmsg.NewPtrMetadataRequest()
		req.AllowAutoTopicCreation = s.cfg.AllowAutoTopicCreation
		for _, name := range names {
			if t := s.topics[name]; t == nil || t.err != nil || time.Since(t.asked) > topicMaxAge {
				rt := kmsg.NewMetadataRequestTopic()
				rt.Topic = kmsg.StringPtr(name)
				req.Topics = append(req.Topics, rt)
			}
		}
		if len(req.Topics) == 0 {
			return nil
		}
		resp, err := req.RequestWith(ctx, s.client)
		if err != nil {
			return err
		}
		again := false
		for i := range resp.Topics {
			again = s.note(&resp.Topics[i]) || again
		}
		if !again || ask == topicAsks || !wait(ctx, retryPause) {
			return nil
		}
	}
}

// note takes in what the cluster says of a topic, and reports whether to ask
// again.
func (s *session) note(rt *kmsg.MetadataResponseTopic) (again bool) {
	if rt.Topic == nil {
		return false
	}
	t := &topic{err: kerr.ErrorForCode(rt.ErrorCode), asked: time.Now()}
	s.topics[*rt.Topic] = t
	if t.err != nil {
		return kerr.IsRetriable(t.err)
	}
	t.hash = kgo.StickyKeyPartitioner(nil).ForTopic(*rt.Topic)
	t.leaders = make([]int32, len(rt.Partitions))
	for i := range t.leaders {
		t.leaders[i] = nowhere
	}
	for _, p := range rt.Partitions {
		if p.Partition >= 0 && int(p.Partition) < len(t.leaders) {
			t.leaders[p.Partition] = p.Leader
			again = again || p.Leader < 0
		}
	}
	if len(t.leaders) == 0 {
		t.err = kerr.LeaderNotAvailable
		return true
	}
	return again
}

// forget has a topic asked for afresh.
func (s *session) forget(name string) { delete(s.topics, name) }

// buffer returns an empty buffer for a record batch.
func (s *session) buffer() []byte {
	n := len(s.spare)
	if n == 0 {
		return nil
	}
	b := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return b
}

// advance counts records that were accepted. Numbers begin again after the
// largest, as the protocol has it.
func (s *session) advance(at place, records int) {
	next := int64(s.sequences[at]) + int64(records)
	if next > math.MaxInt32 {
		next -= math.MaxInt32 + 1
	}
	s.sequences[at] = int32(next)
}

// wait pauses, and reports false where ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
