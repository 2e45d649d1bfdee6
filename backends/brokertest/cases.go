package brokertest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var cases = []testCase{
	{"Accept/bytes, headers and id as they are", carried},
	{"Accept/order within an aggregate", func(f *fixture) {
		topic := f.Topic()
		for range 5 {
			require.NoError(f, f.publish(f.batch(topic, 0), limit), "an empty batch is no work")
		}
		records := f.batch(topic, 1000)
		require.NoError(f, f.publish(records[:10], limit))
		require.NoError(f, f.publish(records[10:], limit))
		f.inOrder(f.readN(topic, 1000), 100)
	}},
	{"Accept/several topics and calls at once", func(f *fixture) {
		topics := []string{f.Topic(), f.Topic()}
		var batches [][]backends.Record
		for i := range 4 {
			var batch []backends.Record
			for n := range 300 {
				batch = append(batch, f.record(topics[n%2], "b"+strconv.Itoa(i), strconv.Itoa(n/2+1)))
			}
			batches = append(batches, batch)
		}
		var wg sync.WaitGroup
		errs := make([]error, len(batches))
		for i := range batches {
			wg.Go(func() { errs[i] = f.publish(batches[i], limit) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(f, err)
		}
		for _, topic := range topics {
			got := firsts(f.readN(topic, 600))
			for i := range 4 {
				require.Equal(f, numbers(150), got["b"+strconv.Itoa(i)])
			}
		}
	}},
	{"Keep/neither slice nor bytes after the return", func(f *fixture) {
		topic := f.Topic()
		records := f.batch(topic, 100)
		require.NoError(f, f.publish(records, limit))
		for i := range records {
			copy(records[i].Payload, bytes.Repeat([]byte{'!'}, len(records[i].Payload)))
			records[i].Metadata["type"] = "!"
			records[i] = backends.Record{}
		}
		got := f.readN(topic, 100)
		f.inOrder(got, 10)
		for _, m := range got {
			require.Equal(f, "test", m.Headers["type"])
		}
	}},
	{"Refuse/exactly the refused one, and what follows it in its aggregate", refuse},
	{"Refuse/a retry comes before what it precedes", refuseThenMend},
	{"Refuse/a missing topic is named, others go on", missing},
	{"Refuse/odd records are answered, others go on", odd},
	{"Limit/a context that has ended accepts nothing it does not own up to", func(f *fixture) {
		topic := f.Topic()
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		records := f.batch(topic, 20)
		err := f.Broker().Publish(ctx, records)
		claimed := accepted(records, err)
		require.Len(f, f.readN(topic, len(claimed))[:len(claimed)], len(claimed))
		f.publishAll(records)
		f.inOrder(f.readN(topic, 20), 2)
	}},
	{"Limit/a hanging broker is given up in time", hang},
	{"Outage/is unavailable, and over without a new object", outage},
	{"Close/twice, and then it is closed", func(f *fixture) {
		topic := f.Topic()
		require.NoError(f, f.publish(f.batch(topic, 10), limit))
		for range 2 {
			ctx, cancel := context.WithTimeout(f.Context(), limit)
			require.NoError(f, f.Broker().Close(ctx))
			cancel()
		}
		require.ErrorIs(f, f.publish(f.batch(topic, 10), limit), backends.ErrClosed)
	}},
	{"Close/while publishing", func(f *fixture) {
		topic := f.Topic()
		records := f.batch(topic, 500)
		errs := make(chan error, 1)
		go func() { errs <- f.publish(records, limit) }()
		ctx, cancel := context.WithTimeout(f.Context(), limit)
		defer cancel()
		require.NoError(f, f.Broker().Close(ctx))
		claimed := accepted(records, <-errs)
		require.GreaterOrEqual(f, len(f.readN(topic, len(claimed))), len(claimed))
	}},
}

func carried(f *fixture) {
	topic := f.Topic()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	bodies := [][]byte{every, {}, {0}, []byte(`"word"`), []byte("null"), []byte("🦉"), bytes.Repeat([]byte("x"), 100_000)}
	headers := message.Metadata{
		"plain": "value", "empty": "", "emoji": "🦉", "quote": `"\`, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	var records []backends.Record
	for _, b := range bodies {
		r := f.record(topic, "order 42/🦉", "")
		r.Payload, r.Metadata = b, maps.Clone(headers)
		records = append(records, r)
	}
	loose := f.record(topic, "", "loose")
	require.NoError(f, f.publish(append(slices.Clone(records), loose), limit))
	got := f.readN(topic, len(records)+1)
	require.Len(f, got, len(records)+1)
	byID := map[string]Message{}
	for _, m := range got {
		byID[m.ID] = m
	}
	for _, r := range records {
		m := byID[r.MessageID]
		require.True(f, bytes.Equal(r.Payload, m.Payload))
		want := maps.Clone(map[string]string(headers))
		want[backends.AggregateKey] = r.Aggregate
		want[backends.SequenceKey] = strconv.FormatInt(r.Sequence, 10)
		want[backends.TopicKey] = topic
		want[backends.CreatedAtKey] = r.CreatedAt.Format(time.RFC3339Nano)
		require.Equal(f, want, m.Headers)
	}
	require.NotContains(f, byID[loose.MessageID].Headers, backends.AggregateKey)
	require.NotContains(f, byID[loose.MessageID].Headers, backends.SequenceKey)
}

// refuse has one bad record in the middle of a batch.
func refuse(f *fixture) {
	h, ok := f.Harness.(Refuser)
	if !ok {
		f.Logf("not tried: this broker cannot be made to refuse a record")
		return
	}
	topic := f.Topic()
	records := f.batch(topic, 200)
	records[93] = h.Refused(records[93]) // the tenth of a3
	failed := f.failures(f.publish(records, limit))
	require.Equal(f, backends.Rejected, failed[93].State)
	require.Error(f, failed[93].Err)
	for i, x := range failed {
		require.Equal(f, "a3", records[i].Aggregate, "record %d was blamed for a neighbour", i)
		require.GreaterOrEqual(f, i, 93)
		if i > 93 {
			require.Equal(f, backends.NotSent, x.State)
		}
	}
	require.Len(f, failed, 11, "what follows the refused one must not be accepted")
	got := firsts(f.readN(topic, 189))
	require.Equal(f, numbers(9), got["a3"])
	require.Equal(f, numbers(20), got["a4"])
}

func refuseThenMend(f *fixture) {
	h, ok := f.Harness.(Refuser)
	if !ok {
		f.Logf("not tried: this broker cannot be made to refuse a record")
		return
	}
	topic := f.Topic()
	records := f.batch(topic, 100)
	good := slices.Clone(records)
	for _, i := range []int{5, 20, 41, 99} {
		records[i] = h.Refused(records[i])
	}
	err := f.publish(records, limit)
	var left []backends.Record
	for i := range good {
		if !slices.Contains(accepted(records, err), i) {
			left = append(left, good[i])
		}
	}
	f.publishAll(left)
	f.inOrder(f.readN(topic, 100), 10)
}

func missing(f *fixture) {
	h, ok := f.Harness.(Missing)
	if !ok {
		f.Logf("not tried: this broker cannot tell that a topic is missing")
		return
	}
	topic, gone := f.Topic(), h.MissingTopic()
	var records []backends.Record
	for i := range 40 {
		records = append(records, f.record([]string{topic, gone}[i%2], "a"+strconv.Itoa(i%4), strconv.Itoa(i)))
	}
	// One aggregate over both topics: what follows the refused one waits.
	records = append(records, f.record(topic, "mixed", "1"), f.record(gone, "mixed", "2"), f.record(topic, "mixed", "3"))
	failed := f.failures(f.publish(records, limit))
	for i, r := range records {
		x, bad := failed[i]
		switch {
		case r.Aggregate == "mixed" && string(r.Payload) == "3":
			require.True(f, bad && x.State == backends.NotSent, "what follows a refused record of its aggregate was sent")
		case r.Topic == gone && x.State == backends.Rejected:
			require.Equal(f, backends.PermanentFailure, backends.ClassOf(x.Err), "%v", x.Err)
		case r.Topic == gone:
			require.Equal(f, backends.NotSent, x.State, "record %d: %v", i, x.Err)
		default:
			require.False(f, bad, "record %d of a good topic failed: %v", i, x.Err)
		}
	}
	require.Len(f, f.readN(topic, 21), 21)
}

func hang(f *fixture) {
	h, ok := f.Harness.(Freezer)
	if !ok {
		f.Logf("not tried: this broker cannot be made to hang")
		return
	}
	topic := f.Topic()
	require.NoError(f, f.publish(f.batch(topic, 10), limit))
	h.Freeze()
	start := time.Now()
	records := f.batch(topic, 30)
	err := f.publish(records, 500*time.Millisecond)
	took := time.Since(start)
	h.Thaw()
	require.Error(f, err, "a broker that hangs has accepted nothing")
	require.Less(f, took, 5*time.Second, "the limit was not kept")
	require.Empty(f, accepted(records, err))
	f.publishAll(records)
	got := f.readN(topic, 40)
	for a, payloads := range firsts(got) {
		require.Equal(f, append([]string{"1"}, numbers(3)...), payloads, a)
	}
}

func outage(f *fixture) {
	h, ok := f.Harness.(Outage)
	if !ok {
		f.Logf("not tried: this broker cannot be cut off")
		return
	}
	topic := f.Topic()
	records := f.batch(topic, 300)
	require.NoError(f, f.publish(records[:100], limit))
	h.Down()
	err := f.publish(records[100:], 2*time.Second)
	h.Up()
	require.Error(f, err)
	require.Empty(f, accepted(records[100:], err))
	require.Equal(f, backends.UnavailableFailure, backends.ClassOf(err), "%v", err)
	require.False(f, strings.Contains(err.Error(), "test"), "an error holds metadata")
	f.publishAll(records[100:])
	f.inOrder(f.readN(topic, 300), 30)
}
