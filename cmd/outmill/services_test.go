package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// warehouse is an outbox in Postgres, in a schema of its own.
type warehouse struct {
	*testing.T
	url   string // for outmill
	pool  *pgxpool.Pool
	store *postgres.Store
}

func newWarehouse(t *testing.T) *warehouse {
	t.Helper()
	server, schema := testenv.Server(t, testenv.PostgresURL), "outmill_"+strings.ToLower(rand.Text()[:12])
	u, err := url.Parse(server)
	require.NoError(t, err)
	q := u.Query()
	q.Set("schema", schema)
	u.RawQuery = q.Encode()
	w := &warehouse{T: t, url: u.String()}
	w.pool, err = pgxpool.New(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(w.pool.Close)
	w.store, err = postgres.New(w.pool, postgres.Config{Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.pool.Exec(context.WithoutCancel(t.Context()), "drop schema if exists "+schema+" cascade")
		require.NoError(t, err)
	})
	return w
}

func (w *warehouse) publish(topic string, n, aggregates int) map[string]bool {
	w.Helper()
	msgs, ids := messages(topic, n, aggregates)
	tx, err := w.pool.Begin(w.Context())
	require.NoError(w, err)
	require.NoError(w, w.store.Publisher(tx).Publish(topic, msgs...))
	require.NoError(w, tx.Commit(w.Context()))
	return ids
}

func newTopic(t *testing.T, seeds string) string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(seeds, ",")...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	topic, admin := "outmill-"+strings.ToLower(rand.Text()[:12]), kadm.NewClient(client)
	_, err = admin.CreateTopic(t.Context(), 3, 1, nil, topic)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.DeleteTopic(context.WithoutCancel(t.Context()), topic)
		require.NoError(t, err)
	})
	return topic
}

// consume reads n messages as lines, in the order of each partition.
func consume(t *testing.T, seeds, topic string, n int) (got []line) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(seeds, ",")...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	for len(got) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%d of %d came", len(got), n)
		fetches.EachRecord(func(r *kgo.Record) {
			l := line{Topic: r.Topic, Payload: r.Value}
			for _, h := range r.Headers {
				switch h.Key {
				case "_watermill_message_uuid":
					l.MessageID = string(h.Value)
				case backends.AggregateKey:
					l.Aggregate = string(h.Value)
				case backends.SequenceKey:
					_, err := fmt.Sscan(string(h.Value), &l.Sequence)
					require.NoError(t, err)
				}
			}
			got = append(got, l)
		})
	}
	return got
}

// A line of a file swaps store and broker; nothing else changes.
func TestRun_PostgresToKafka(t *testing.T) {
	t.Parallel()
	w, seeds := newWarehouse(t), testenv.Server(t, testenv.KafkaBrokers)
	topic := newTopic(t, seeds)
	path := file(t, "store: '"+w.url+"'", "broker: kafka://"+seeds+"?compression=zstd&client_id=outmill-test", "http: 127.0.0.1:0")
	for _, args := range [][]string{{"config", "check"}, {"migrate", "up"}, {"migrate", "up"}, {"migrate", "status"}} {
		code, _, said := outmill(t, nil, append(args, "-c", path)...)
		require.Equal(t, exitOK, code, said)
	}
	want := w.publish(topic, 1000, 50)
	p := start(t, nil, "run", "-c", path)
	at := p.address()
	require.Eventually(t, func() bool { code, _ := get(t, at+"/readyz"); return code == 200 }, limit, 20*time.Millisecond)
	for id := range w.publish(topic, 1000, 50) {
		want[id] = true
	}
	missing := "outmill-missing-" + strings.ToLower(rand.Text()[:8])
	w.publish(missing, 4, 1)
	inOrder(t, want, consume(t, seeds, topic, len(want)))

	// A backlog is counted by more than one statement, so a record that is moved
	// meanwhile may be in neither count: the end is waited for.
	require.Eventually(t, func() bool {
		b, err := w.store.Backlog(t.Context())
		return err == nil && b.Ready+b.Delayed == 0 && b.Dead == 4 && b.Parked == 1
	}, limit, 20*time.Millisecond, "a topic that does not exist stops its aggregate alone")
	_, page := get(t, at+"/metrics")
	require.Contains(t, page, `outbox_dead_letters_total{messaging_destination_name="`+missing+`",outbox_dead_letter_reason="permanent",outbox_name="default"} `)
	require.Contains(t, page, `messaging_client_sent_messages_total{error_type="",messaging_destination_name="`+topic+`",messaging_operation_name="publish",messaging_system="kafka",outbox_name="default"} 2000`)
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, p.code(), p.err.String())

	code, out, said := outmill(t, nil, "dead", "requeue", "-c", path, "--topic", missing, "--yes")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "4 records requeued.")
	code, out, said = outmill(t, nil, "status", "-c", path)
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "ready       4")
}

// Passwords are in URLs, files and variables; whatever goes wrong, none is told.
func TestRun_TellsNoSecret(t *testing.T) {
	t.Parallel()
	const secret, escaped = "p%#@ w0rd", "p%25%23%40%20w0rd"
	w := newWarehouse(t)
	require.NoError(t, w.store.Migrate(t.Context()))
	for name, c := range map[string]struct {
		store, broker string
		code          int
	}{
		"wrong password":   {"postgres://nobody:" + escaped + "@" + hostOf(t, w.url) + "/postgres", "stdout:", exitFailed},
		"nobody there":     {"postgres://nobody:" + escaped + "@127.0.0.1:1/postgres", "stdout:", exitFailed},
		"cannot be parsed": {"postgres://nobody:" + secret + "@127.0.0.1:1/postgres", "stdout:", exitUsage},
		"wrong broker":     {w.url, "kafka://app:" + escaped + "@127.0.0.1:1?sasl=PLAIN", exitOK},
	} {
		p := start(t, []string{"OUTMILL_STORE=" + c.store, "OUTMILL_BROKER=" + c.broker, "OUTMILL_HTTP=127.0.0.1:0", "OUTMILL_LOG_LEVEL=debug"}, "run")
		told := ""
		if c.code == exitOK { // it runs on, and waits for the broker
			at := p.address()
			w.publish("orders", 10, 2)
			p.says("a topic cannot be reached")
			code, page := get(t, at+"/readyz")
			require.Equal(t, 503, code)
			_, more := get(t, at+"/metrics")
			told = page + more
			p.signal(syscall.SIGTERM)
		}
		require.Equal(t, c.code, p.code(), "%s: %s", name, p.err.String())
		told += p.out.String() + p.err.String()
		for _, s := range []string{secret, escaped, "w0rd"} {
			require.NotContains(t, told, s, name)
		}
	}
}

func hostOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u.Host
}
