package inboxtest

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// world is a consumer's database.
type world struct {
	t     *testing.T
	name  string // schema, topic and group
	pool  *pgxpool.Pool
	store *postgres.Store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w := &world{t: t, name: "inbox_" + strings.ToLower(rand.Text()[:12]), pool: pool}
	w.store, err = postgres.New(pool, postgres.Config{Schema: w.name})
	require.NoError(t, err)
	require.NoError(t, w.store.Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop schema "+w.name+" cascade")
		require.NoError(t, err)
	})
	_, err = pool.Exec(t.Context(), "create table "+w.name+".effects (n bigserial primary key, aggregate text not null, sequence bigint not null)")
	require.NoError(t, err)
	return w
}

// topic makes a Kafka topic.
func (w *world) topic(partitions int32) {
	w.t.Helper()
	testenv.Server(w.t, testenv.KafkaBrokers)
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_6_0_0
	admin, err := sarama.NewClusterAdmin(brokers(), cfg)
	require.NoError(w.t, err)
	require.NoError(w.t, admin.CreateTopic(w.name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	w.t.Cleanup(func() {
		_ = admin.DeleteTopic(w.name)
		require.NoError(w.t, admin.Close())
	})
}

// records are what forwarders may have sent: sequences of several aggregates, 5 %
// of them twice, 5 % of neighbours swapped.
func (w *world) records(aggregates, each int) []backends.Record {
	seed := uint64(time.Now().UnixNano())
	w.t.Logf("seed %d", seed)
	r := mrand.New(mrand.NewPCG(seed, 0))
	lines := make([][]backends.Record, aggregates)
	for a := range lines {
		name := fmt.Sprintf("order-%d", a)
		for n := range each {
			lines[a] = append(lines[a], backends.Record{
				MessageID: fmt.Sprintf("%s-%d", name, n+1), Topic: w.name, Aggregate: name, Sequence: int64(n + 1),
				Payload: []byte("{}"), CreatedAt: time.Now(),
			})
			if r.Float64() < 0.05 {
				lines[a] = append(lines[a], lines[a][len(lines[a])-1])
			}
		}
		for i := range len(lines[a]) - 1 {
			if r.Float64() < 0.05 {
				lines[a][i], lines[a][i+1] = lines[a][i+1], lines[a][i]
			}
		}
	}
	var out []backends.Record
	for len(lines) > 0 {
		i := r.IntN(len(lines))
		out, lines[i] = append(out, lines[i][0]), lines[i][1:]
		if len(lines[i]) == 0 {
			lines[i] = lines[len(lines)-1]
			lines = lines[:len(lines)-1]
		}
	}
	return out
}

func (w *world) handled() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), "select count(*) from "+w.name+".effects").Scan(&n))
	return n
}

// until waits until so many were handled.
func (w *world) until(n int, limit time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(limit); w.handled() < n; {
		require.True(w.t, time.Now().Before(end), "%d of %d handled in %v", w.handled(), n, limit)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-w.t.Context().Done():
		}
	}
}

// check says that each aggregate's effects are 1 to each, once and in order.
func (w *world) check(aggregates, each int) {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), "select aggregate, sequence from "+w.name+".effects order by n")
	require.NoError(w.t, err)
	defer rows.Close()
	next := map[string]int64{}
	for rows.Next() {
		var a string
		var n int64
		require.NoError(w.t, rows.Scan(&a, &n))
		next[a]++
		require.Equal(w.t, next[a], n, "aggregate %s", a)
	}
	require.NoError(w.t, rows.Err())
	require.Len(w.t, next, aggregates)
	for a, n := range next {
		require.EqualValues(w.t, each, n, "aggregate %s", a)
	}
	var left int
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), "select (select count(*) from "+w.name+".inbox_buffer) + (select count(*) from "+w.name+".inbox_dead)").Scan(&left))
	require.Zero(w.t, left, "in the buffer or dead")
}
