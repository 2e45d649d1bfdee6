package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/internal/testenv"
)

// doomed is a server of the test's own, which writes its log out late, so that a
// crash takes the last commits with it.
type doomed struct {
	t    *testing.T
	port int
}

func startDoomed(t *testing.T) *doomed {
	t.Helper()
	testenv.Server(t, testenv.PostgresURL) // where there is no Postgres, there is none to be started
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &doomed{t: t, port: l.Addr().(*net.TCPAddr).Port}
	require.NoError(t, l.Close())
	d.script("start")
	t.Cleanup(func() { d.script("wipe") })
	return d
}

func (d *doomed) script(verb string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "..", "scripts", "services", "postgres.sh"), verb)
	cmd.Env = append(os.Environ(), "OUTMILL_POSTGRES_PORT="+strconv.Itoa(d.port), "OUTMILL_POSTGRES_ARGS=-c wal_writer_delay=10s -c autovacuum=off")
	out, err := cmd.CombinedOutput()
	require.NoError(d.t, err, "postgres.sh %s: %s", verb, out)
}

func (d *doomed) pool() *pgxpool.Pool {
	d.t.Helper()
	p, err := pgxpool.New(d.t.Context(), fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", d.port))
	require.NoError(d.t, err)
	d.t.Cleanup(p.Close)
	return p
}

// crashWorld is what one forwarder remembers across the crash of its server.
type crashWorld struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *Store
	lease  backends.Lease
	reader backends.Reader
}

// commit publishes one message for each of many aggregates. Lazy commits reach
// the disk some time later.
func (w *crashWorld) commit(names string, n int, lazy bool) {
	w.Helper()
	for i := range n {
		tx, err := w.pool.Begin(w.Context())
		require.NoError(w, err)
		if lazy {
			_, err = tx.Exec(w.Context(), "set local synchronous_commit = off")
			require.NoError(w, err)
		}
		m := message.NewMessage(watermill.NewUUID(), []byte(names+strconv.Itoa(i)))
		backends.SetAggregate(m, "a"+strconv.Itoa(i%10))
		require.NoError(w, w.store.Publisher(tx).Publish("t", m))
		require.NoError(w, tx.Commit(w.Context()))
	}
}

// names reads all there is.
func (w *crashWorld) names() (out []string, records []backends.Record) {
	w.Helper()
	for {
		got, err := w.reader.Read(w.Context(), w.lease, backends.Want{Limit: 1000})
		require.NoError(w, err)
		if len(got) == 0 {
			return out, records
		}
		require.NoError(w, w.reader.Settle(w.Context(), w.lease, deliver(got)))
		for _, r := range got {
			out = append(out, string(r.Payload))
		}
		records = append(records, got...)
	}
}

// 1. Transactions commit without waiting for the disk; a reader sees their rows,
// so its memory of transaction ids and row ids runs ahead of the disk.
// 2. The server crashes. Ids above what was on disk are handed out again.
// 3. New rows lie below what the reader remembers: it must forget.
func (w *crashWorld) crash(d *doomed) (lost []backends.Record, before, after []int64) {
	w.Helper()
	w.commit("kept", 5, false)
	_, kept := w.names()
	w.commit("lost", 300, true)
	got, err := w.reader.Read(w.Context(), w.lease, backends.Want{Limit: 1000})
	require.NoError(w, err)
	require.Len(w, got, 300)
	d.script("crash")
	d.script("start")
	w.pool.Reset()
	w.commit("fresh", 20, false)
	for _, r := range got {
		before = append(before, r.ID)
	}
	rows, err := w.pool.Query(w.Context(), "select id from "+w.store.names.outbox+" where convert_from(payload, 'UTF8') like 'fresh%'")
	require.NoError(w, err)
	for rows.Next() {
		var id int64
		require.NoError(w, rows.Scan(&id))
		after = append(after, id)
	}
	require.NoError(w, rows.Err())
	_ = kept
	return got, before, after
}

func newCrashWorld(t *testing.T, pool *pgxpool.Pool, schema string) *crashWorld {
	t.Helper()
	s, err := New(pool, Config{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	lease, err := s.Lease(t.Context(), "crash", time.Hour)
	require.NoError(t, err)
	w := &crashWorld{T: t, pool: pool, store: s, lease: lease, reader: s.Reader()}
	w.names() // makes the token
	_, err = pool.Exec(t.Context(), "checkpoint")
	require.NoError(t, err)
	return w
}

func TestCrash_MemoryAheadOfTheDisk(t *testing.T) {
	d := startDoomed(t)
	w := newCrashWorld(t, d.pool(), "sound")
	lost, before, after := w.crash(d)
	require.Less(t, after[0], before[len(before)-1], "no id was handed out again: the crash proves nothing")

	// A late word about what was lost does not hit the new bearers of its ids.
	require.NoError(t, w.reader.Settle(t.Context(), w.lease, deliver(lost)))
	names, _ := w.names()
	fresh := 0
	for _, name := range names {
		if strings.HasPrefix(name, "fresh") {
			fresh++
		}
	}
	require.Equal(t, 20, fresh, "rows committed after the crash were left behind: %v", names)
}

// The same without the token: the table is not emptied by the crash. It must show.
func TestCrash_WithoutTheTokenItShows(t *testing.T) {
	d := startDoomed(t)
	w := newCrashWorld(t, d.pool(), "spoilt")
	_, err := w.pool.Exec(t.Context(), "alter table "+w.store.names.incarnation+" set logged")
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), "checkpoint")
	require.NoError(t, err)
	require.ErrorContains(t, w.store.Check(t.Context()), "must be unlogged")
	w.crash(d)
	got, err := w.reader.Read(t.Context(), w.lease, backends.Want{Limit: 1000})
	require.NoError(t, err)
	require.Less(t, len(got), 20, "a reader that was not told of the crash found everything: the test proves nothing")
}
