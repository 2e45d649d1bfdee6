package kafka_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outmill/outmill/backends/brokers/kafka"
)

// cluster starts a fake one and hands each record batch that arrives to see, with
// the record batch's header. An error cuts the connection before the cluster has
// the request.
func cluster(t *testing.T, brokers int, see func(batch []byte, header kmsg.RecordBatch) error) (*kfake.Cluster, *harness) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(brokers))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				var header kmsg.RecordBatch
				if err := header.ReadFrom(p.Records); err != nil {
					t.Error(err)
				}
				if err := see(p.Records, header); err != nil {
					return nil, err, true
				}
			}
		}
		return nil, nil, false
	})
	return c, open(t, c.ListenAddrs(), kafka.Config{})
}

// A request without an answer is repeated with the bytes and the sequence number
// it had: the cluster takes it for the same, whichever arrives first.
func TestSend_RepeatedAsItWas(t *testing.T) {
	var batches [][]byte
	c, h := cluster(t, 1, func(batch []byte, _ kmsg.RecordBatch) error {
		batches = append(batches, slices.Clone(batch))
		if len(batches)%3 != 0 {
			return errors.New("cut")
		}
		return nil
	})
	topic := h.Topic()
	for range 5 {
		require.NoError(t, h.broker.Publish(t.Context(), numbered(topic, 10)))
	}
	got, err := h.Read(t.Context(), topic, 50)
	require.NoError(t, err)
	require.Len(t, got, 50)
	c.Close() // batches are the cluster's until then
	require.Len(t, batches, 15)
	for i := 0; i < len(batches); i += 3 {
		require.Equal(t, batches[i], batches[i+1])
		require.Equal(t, batches[i], batches[i+2])
	}
}

// The record batches that a session sends to a partition are numbered one behind
// the other, and each call that has met an unknown outcome begins as another
// producer: what it left may still arrive.
func TestSend_Sequences(t *testing.T) {
	var headers []kmsg.RecordBatch
	var cut atomic.Bool
	c, h := cluster(t, 1, func(_ []byte, header kmsg.RecordBatch) error {
		if cut.Load() {
			return errors.New("cut")
		}
		headers = append(headers, header)
		return nil
	})
	topic := h.Topic()
	for _, n := range []int{3, 5, 7} {
		require.NoError(t, h.broker.Publish(t.Context(), numbered(topic, n)))
	}
	cut.Store(true)
	require.Equal(t, []string{"0 unknown unavailable"}, states(t, h.broker.Publish(t.Context(), numbered(topic, 1))))
	cut.Store(false)
	require.NoError(t, h.broker.Publish(t.Context(), numbered(topic, 2)))
	c.Close() // headers are the cluster's until then
	require.Len(t, headers, 4)
	for i, want := range []int32{0, 3, 8, 0} {
		require.Equal(t, want, headers[i].FirstSequence)
	}
	require.Equal(t, headers[0].ProducerID, headers[2].ProducerID)
	require.NotEqual(t, headers[0].ProducerID, headers[3].ProducerID)
}

// Partitions change their leader all the time: nothing is lost, nothing repeated
// and nothing out of order.
func TestSend_LeadersMove(t *testing.T) {
	var moves atomic.Int64
	c, h := cluster(t, 3, func([]byte, kmsg.RecordBatch) error { return nil })
	topic := h.Topic()
	s := &sender{harness: h, topic: topic}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				c.ShufflePartitionLeaders()
				moves.Add(1)
				pause(t, 1e6)
			}
		}
	}()
	for range 100 {
		s.all(s.batch(50))
	}
	close(stop)
	<-done
	s.check()
	require.Greater(t, moves.Load(), int64(10))
}
