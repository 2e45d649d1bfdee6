package crashtest

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// world is an outbox, a topic, and what was committed.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	seeds  []string
	schema string
	store  *postgres.Store
	topic  string

	mu        sync.Mutex
	committed map[string]string // message id → aggregate
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := testenv.Server(t, testenv.PostgresURL)
	w := &world{
		T: t, seeds: strings.Split(testenv.Server(t, testenv.KafkaBrokers), ","),
		schema: "crash_" + strings.ToLower(rand.Text()[:12]), topic: "crash-" + strings.ToLower(rand.Text()[:12]),
		committed: map[string]string{},
	}
	var err error
	w.pool, err = pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(w.pool.Close)
	w.store, err = postgres.New(w.pool, postgres.Config{Schema: w.schema})
	require.NoError(t, err)
	require.NoError(t, w.store.Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := w.pool.Exec(context.WithoutCancel(t.Context()), "drop schema "+w.schema+" cascade")
		require.NoError(t, err)
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 6, 1, nil, w.topic)
	require.NoError(t, err)
	return w
}

// transaction publishes a few messages, and commits or rolls back.
func (w *world) transaction(r *mrand.Rand, aggregates int) error {
	tx, err := w.pool.Begin(w.Context())
	if err != nil {
		return err
	}
	msgs := make([]*message.Message, 1+r.IntN(3))
	for i := range msgs {
		msgs[i] = message.NewMessage(watermill.NewUUID(), []byte("event"))
		backends.SetAggregate(msgs[i], fmt.Sprintf("a%d", r.IntN(aggregates)))
	}
	if err := w.store.Publisher(tx).Publish(w.topic, msgs...); err != nil {
		return err
	}
	if r.IntN(10) == 0 {
		return tx.Rollback(w.Context())
	}
	if err := tx.Commit(w.Context()); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range msgs {
		w.committed[m.UUID] = backends.Aggregate(m)
	}
	return nil
}

// write runs writers until stop is called, which returns their first error.
func (w *world) write(writers, aggregates int) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			r := mrand.New(mrand.NewPCG(uint64(i), 11))
			for {
				select {
				case <-end:
					return
				case <-time.After(time.Duration(r.IntN(4)) * time.Millisecond):
				}
				if errs[i] = w.transaction(r, aggregates); errs[i] != nil {
					return
				}
			}
		})
	}
	return func() {
		w.Helper()
		close(end)
		wg.Wait()
		for _, err := range errs {
			require.NoError(w, err)
		}
	}
}

// pause is a part of the plot: it waits for nothing but time.
func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.Context().Done():
	}
}

// emptied waits until the outbox is empty.
func (w *world) emptied(limit time.Duration) {
	w.Helper()
	require.Eventually(w, func() bool {
		b, err := w.store.Backlog(w.Context())
		return err == nil && b.Ready+b.Delayed == 0
	}, limit, 20*time.Millisecond, "records are left in the outbox")
}

// delivery is a message in the topic.
type delivery struct {
	id, aggregate string
	sequence      int64
}

// topicContent reads everything that is in the topic now.
func (w *world) topicContent() []delivery {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(w, err)
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, w.topic)
	require.NoError(w, err)
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var out []delivery
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		require.NoError(w, ctx.Err(), "the topic could not be read to its end")
		fetches.EachRecord(func(r *kgo.Record) {
			m := message.NewMessage("", nil)
			for _, h := range r.Headers {
				m.Metadata[h.Key] = string(h.Value)
			}
			seq, _ := backends.Sequence(m)
			out = append(out, delivery{m.Metadata["_watermill_message_uuid"], backends.Aggregate(m), seq})
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return out
}

// check compares the books: nothing lost, nothing invented, and for a consumer
// that drops repeats every aggregate in order and without a gap.
func (w *world) check() (repeats int) {
	w.Helper()
	got := w.topicContent()
	seen, last := map[string]bool{}, map[string]int64{}
	for _, d := range got {
		if seen[d.id] {
			repeats++
			continue
		}
		seen[d.id] = true
		require.Equal(w, w.committed[d.id], d.aggregate, "a message was invented")
		require.Equal(w, last[d.aggregate]+1, d.sequence, "aggregate %s is out of order", d.aggregate)
		last[d.aggregate] = d.sequence
	}
	require.Len(w, seen, len(w.committed), "messages were lost")
	w.Logf("%d committed, %d delivered, %d repeats", len(w.committed), len(got), repeats)
	return repeats
}
