package postgres

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/internal/testenv"
)

// ownServer is a server that a test may crash.
type ownServer struct {
	t    *testing.T
	port int
}

// newServer starts a server whose commits reach the disk late.
func newServer(t *testing.T) *ownServer {
	t.Helper()
	testenv.Server(t, testenv.PostgresURL) // where servers are not wanted, not this one either
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &ownServer{t: t, port: l.Addr().(*net.TCPAddr).Port}
	require.NoError(t, l.Close())
	t.Cleanup(func() { s.script("wipe") })
	s.script("start")
	return s
}

func (s *ownServer) script(verb string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../../scripts/services/postgres.sh", verb)
	cmd.Env = append(os.Environ(), "OUTMILL_POSTGRES_PORT="+strconv.Itoa(s.port),
		"OUTMILL_POSTGRES_ARGS=-c synchronous_commit=off -c wal_writer_delay=10s -c checkpoint_timeout=1h -c autovacuum=off")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(s.t, cmd.Run(), "%s", &out)
}

// freeze stops the process that writes the log out: from now on commits are in
// the server's memory only.
func (s *ownServer) freeze(w *randomWorld) (walWriter int) {
	s.t.Helper()
	require.NoError(s.t, w.pool.QueryRow(s.t.Context(), "select pid from pg_stat_activity where backend_type = 'walwriter'").Scan(&walWriter))
	require.NoError(s.t, syscall.Kill(walWriter, syscall.SIGSTOP))
	return walWriter
}

// kill ends the whole server at once.
func (s *ownServer) kill(w *randomWorld, walWriter int) {
	s.t.Helper()
	var dir string
	require.NoError(s.t, w.pool.QueryRow(s.t.Context(), "select current_setting('data_directory')").Scan(&dir))
	text, err := os.ReadFile(dir + "/postmaster.pid")
	require.NoError(s.t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(s.t, err)
	require.NoError(s.t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(s.t, syscall.Kill(walWriter, syscall.SIGKILL))
	s.script("start")
}

// killOne ends one process of the server, which then recovers by itself.
func (s *ownServer) killOne(_ *randomWorld, walWriter int) {
	s.t.Helper()
	require.NoError(s.t, syscall.Kill(walWriter, syscall.SIGKILL))
}

func (s *ownServer) config() *pgxpool.Config {
	s.t.Helper()
	cfg, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port))
	require.NoError(s.t, err)
	return cfg
}

// A crash takes the last commits, their transaction ids and their row ids with
// it, and all are given out again. A reader that lived through it finds what is
// there now, and its late word for what is gone hits nothing.
func TestReader_LivesThroughACrash(t *testing.T) {
	s := newServer(t)
	for name, c := range map[string]struct {
		crash   func(w *randomWorld, walWriter int)
		noToken bool
	}{
		"kill -9":            {crash: s.kill},
		"one process killed": {crash: s.killOne},
		"no token (planted)": {crash: s.killOne, noToken: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := worldAt(t, s.config(), 0, On)
			if c.noToken {
				_, err := w.pool.Exec(t.Context(), "alter table "+w.store.names.incarnation+" set logged")
				require.NoError(t, err)
				require.ErrorContains(t, w.store.Check(t.Context()), "set unlogged")
			}
			lease, err := w.store.Lease(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			r := w.store.Reader().(*reader)
			x := &worldReader{w: w, reader: r}
			require.NoError(t, w.publishTo(t.Context(), "before", 5))
			require.Equal(t, 5, x.drainAll(t, lease))
			_, err = w.pool.Exec(t.Context(), "checkpoint")
			require.NoError(t, err)

			walWriter := s.freeze(w)
			for i := range 100 { // these will never have been
				require.NoError(t, w.publishTo(t.Context(), "gone"+strconv.Itoa(i), 1))
			}
			gone, err := r.Read(t.Context(), lease, backends.Want{Limit: 1000})
			require.NoError(t, err)
			require.Len(t, gone, 100)
			c.crash(w, walWriter)
			w.awaitRecovery(t, walWriter)

			for i := range 50 {
				require.NoError(t, w.publishTo(t.Context(), "fresh"+strconv.Itoa(i), 1))
			}
			require.NoError(t, w.burn(t.Context(), 200)) // or the ids alone would tell
			r.scan.SafetyNet(time.Now())                 // not what is tried here
			late := r.Settle(t.Context(), lease, deliver(gone))
			var n, reused int
			require.NoError(t, w.pool.QueryRow(t.Context(), "select count(*), count(*) filter (where id <= $1) from "+w.store.names.outbox+" where aggregate like 'fresh%'",
				maxID(gone)).Scan(&n, &reused))
			require.Positive(t, reused, "no id was given out again: nothing is tried")
			require.Equal(t, 50, n, "a late word removed what it did not mean")
			got := x.drainAll(t, lease)
			if c.noToken {
				require.Less(t, got, 50, "the planted fault does not show")
				return
			}
			require.NoError(t, late)
			require.Equal(t, 50, got)
		})
	}
}

// awaitRecovery waits until the server has a new process in place of one that
// was killed.
func (w *randomWorld) awaitRecovery(t *testing.T, killed int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.pool.Reset()
		var pid int
		err := w.pool.QueryRow(t.Context(), "select pid from pg_stat_activity where backend_type = 'walwriter'").Scan(&pid)
		return err == nil && pid != killed
	}, time.Minute, 20*time.Millisecond)
	w.pool.Reset()
}

func maxID(records []backends.Record) (id int64) {
	for _, r := range records {
		id = max(id, r.ID)
	}
	return id
}

// burn uses transaction ids up.
func (w *randomWorld) burn(ctx context.Context, n int) error {
	for range n {
		if _, err := w.pool.Exec(ctx, "insert into "+w.schema+".noise values (1)"); err != nil {
			return err
		}
	}
	return nil
}

// An outbox moves to a new server, whose transaction ids are far behind, under a
// reader that goes on.
func TestReader_DumpAndRestore(t *testing.T) {
	old := newRandomWorld(t, 0, On)
	lease, err := old.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	x := &worldReader{w: old, reader: old.store.Reader().(*reader)}
	require.NoError(t, old.publishTo(t.Context(), "delivered", 20))
	require.Equal(t, 20, x.drainAll(t, lease))
	require.NoError(t, old.publishTo(t.Context(), "pending", 20))
	pending, err := x.reader.Read(t.Context(), lease, backends.Want{Limit: 7})
	require.NoError(t, err)
	require.Len(t, pending, 7)

	s := newServer(t)
	moved := worldAt(t, s.config(), 0, On)
	for _, table := range [][2]string{
		{old.store.names.outbox, moved.store.names.outbox},
		{old.store.names.sequences, moved.store.names.sequences},
		{old.store.names.incarnation, moved.store.names.incarnation},
	} {
		copyTable(t, old.pool, moved.pool, table[0], table[1])
	}
	_, err = moved.pool.Exec(t.Context(), "select setval(pg_get_serial_sequence($1, 'id'), (select max(id) from "+moved.store.names.outbox+"))", moved.store.names.outbox)
	require.NoError(t, err)
	require.NoError(t, moved.publishTo(t.Context(), "fresh", 20))
	lease, err = moved.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	t.Run("a reader that goes on", func(t *testing.T) {
		r := *x.reader
		r.store = moved.store
		got, err := r.Read(t.Context(), lease, backends.Want{Limit: 1000})
		require.NoError(t, err)
		require.Len(t, got, 40)
	})
	t.Run("a new one", func(t *testing.T) {
		fresh := &worldReader{w: moved, reader: moved.store.Reader().(*reader)}
		require.Equal(t, 40, fresh.drainAll(t, lease))
		require.NoError(t, moved.publishTo(t.Context(), "fresh", 5))
		require.Equal(t, 5, fresh.drainAll(t, lease))
	})
}

func copyTable(t *testing.T, from, to *pgxpool.Pool, old, fresh string) {
	t.Helper()
	var data bytes.Buffer
	a, err := from.Acquire(t.Context())
	require.NoError(t, err)
	defer a.Release()
	_, err = a.Conn().PgConn().CopyTo(t.Context(), &data, "copy "+old+" to stdout")
	require.NoError(t, err)
	b, err := to.Acquire(t.Context())
	require.NoError(t, err)
	defer b.Release()
	_, err = b.Conn().PgConn().CopyFrom(t.Context(), &data, "copy "+fresh+" from stdin")
	require.NoError(t, err)
}
