package kafka_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

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

// A client that does not know a topic holds the records back until it does, and
// then places them one by one. None may leave before the last is placed: two
// record batches of a partition on their way are accepted one without the other.
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
