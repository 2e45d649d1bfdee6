package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
)

// fake is a cluster whose answers to produce requests a test may change.
type fake struct {
	*harness
	mu     sync.Mutex
	sent   map[string]int                 // record batches by topic and partition
	answer func(topic string) *kerr.Error // nil: as the cluster answers
}

func openFake(t *testing.T, opts ...kfake.Opt) *fake {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	f := &fake{harness: open(t, c.ListenAddrs(), kafka.Config{}), sent: map[string]int{}}
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return f.produce(c, r.(*kmsg.ProduceRequest))
	})
	return f
}

// produce counts what a request holds, and refuses it as a whole when told to.
func (f *fake) produce(c *kfake.Cluster, r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := r.ResponseKind().(*kmsg.ProduceResponse)
	refused := false
	for _, topic := range r.Topics {
		name := topic.Topic
		if name == "" {
			name = c.TopicIDInfo(topic.TopicID).Topic
		}
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			f.sent[name+"/"+strconv.Itoa(int(p.Partition))]++
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition = p.Partition
			if f.answer != nil {
				if e := f.answer(name); e != nil {
					rp.ErrorCode, refused = e.Code, true
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil, refused
}

func (f *fake) reply(answer func(topic string) *kerr.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func numbered(topic string, n int) []backends.Record {
	out := make([]backends.Record, n)
	for i := range out {
		out[i] = backends.Record{
			MessageID: watermill.NewUUID(), Topic: topic, Aggregate: "order-1", Sequence: int64(i + 1), Payload: make([]byte, 100),
		}
	}
	return out
}

// Of each partition, a wave is one record batch, also when the topic is not known
// yet: of two on their way, one may be accepted without the other.
func TestWave_OneRecordBatchForEachPartitionOfANewTopic(t *testing.T) {
	f := openFake(t)
	for range 30 {
		var records []backends.Record
		var topics []string
		for range 3 {
			topics = append(topics, f.Topic())
			records = append(records, numbered(topics[len(topics)-1], 500)...)
			for i := range records {
				records[i].Aggregate = records[i].Topic
			}
		}
		require.NoError(t, f.broker.Publish(t.Context(), records))
		f.mu.Lock()
		for place, n := range f.sent {
			require.Equal(t, 1, n, "record batches of %s", place)
		}
		require.Len(t, f.sent, len(topics))
		clear(f.sent)
		f.mu.Unlock()
	}
}

// states lists an answer's failures as "index state class".
func states(t *testing.T, err error) []string {
	t.Helper()
	var partial *backends.PartialError
	require.True(t, errors.As(err, &partial), "%v", err)
	var out []string
	for _, x := range partial.Failures {
		out = append(out, fmt.Sprint(x.Index, " ", x.State, " ", backends.ClassOf(x.Err)))
	}
	return out
}

// What a cluster's refusals of a whole request come to, for one aggregate of
// three records and a topic beside it that is well.
func TestPublish_ClassesOfRefusals(t *testing.T) {
	const (
		permanent   = "0 rejected permanent, 1 not sent retryable, 2 not sent retryable"
		forAll      = "0 rejected permanent, 1 rejected permanent, 2 rejected permanent"
		unreachable = "0 unknown unavailable, 1 unknown unavailable, 2 unknown unavailable"
		forbidden   = "0 rejected unavailable, 1 rejected unavailable, 2 rejected unavailable"
	)
	for code, want := range map[*kerr.Error]string{
		kerr.MessageTooLarge:              permanent,
		kerr.RecordListTooLarge:           permanent,
		kerr.InvalidRecord:                permanent,
		kerr.InvalidTimestamp:             permanent,
		kerr.CorruptMessage:               permanent,
		kerr.InvalidTopicException:        forAll,
		kerr.TopicAuthorizationFailed:     forbidden,
		kerr.UnknownTopicOrPartition:      unreachable, // the cluster knows it, the broker does not yet
		kerr.NotEnoughReplicas:            unreachable,
		kerr.NotLeaderForPartition:        unreachable,
		kerr.KafkaStorageError:            unreachable,
		kerr.OutOfOrderSequenceNumber:     unreachable,
		kerr.InvalidProducerEpoch:         unreachable,
		kerr.ProducerFenced:               unreachable,
		kerr.UnknownServerError:           unreachable,
		kerr.NotEnoughReplicasAfterAppend: unreachable,
	} {
		t.Run(code.Message, func(t *testing.T) {
			f := openFake(t)
			bad, good := f.Topic(), f.Topic()
			f.reply(func(topic string) *kerr.Error {
				if topic == bad {
					return code
				}
				return nil
			})
			// The two share a request where they share a broker, and a refusal by the
			// test is of the whole request: they go one after the other.
			records := numbered(bad, 3)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err := f.broker.Publish(ctx, records)
			cancel()
			require.Equal(t, want, strings.Join(states(t, err), ", "))
			require.NoError(t, f.broker.Publish(t.Context(), numbered(good, 3)))

			// Mended, the same object goes on, with nothing missing.
			f.reply(nil)
			require.NoError(t, f.broker.Publish(t.Context(), records))
			got, err := f.Read(t.Context(), bad, 3)
			require.NoError(t, err)
			require.Len(t, got, 3)
			for i, m := range got {
				require.Equal(t, records[i].MessageID, m.ID)
			}
		})
	}
}
