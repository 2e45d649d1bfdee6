package mysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/testenv"
)

// ownServer is a server that a test may crash.
type ownServer struct {
	t      *testing.T
	engine string
	port   int
	args   string
}

func newServer(t *testing.T, engine, args string) *ownServer {
	t.Helper()
	testenv.Server(t, engines[engine]) // where servers are not wanted, not this one either
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &ownServer{t: t, engine: engine, port: l.Addr().(*net.TCPAddr).Port, args: args}
	require.NoError(t, l.Close())
	t.Cleanup(func() { s.script("wipe") })
	s.script("start")
	return s
}

func (s *ownServer) script(verb string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../../scripts/services/"+strings.ToLower(s.engine)+".sh", verb)
	name := "OUTMILL_" + strings.ToUpper(s.engine)
	cmd.Env = append(os.Environ(), name+"_PORT="+strconv.Itoa(s.port), name+"_ARGS="+s.args)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(s.t, cmd.Run(), "%s", &out)
}

func (s *ownServer) dsn() *driver.Config {
	s.t.Helper()
	cfg, err := driver.ParseDSN(fmt.Sprintf("outmill:outmill@tcp(127.0.0.1:%d)/outmill", s.port))
	require.NoError(s.t, err)
	return cfg
}

// The server is killed in the middle of appending, reading and settling, three
// times. Every transaction whose commit was answered is delivered, none twice
// after its settling was answered, sequences have no gap and no inversion, and
// the reader that lived through it goes on.
func TestServer_KilledLosesNothing(t *testing.T) {
	for engine := range engines {
		t.Run(engine, func(t *testing.T) {
			// Names in lower case, whatever the file system: only MariaDB can be told late.
			args := ""
			if engine == "MariaDB" {
				args = "--lower-case-table-names=1 --innodb-flush-log-at-trx-commit=1"
			}
			server := newServer(t, engine, args)
			s := open(t, server.dsn(), mysql.Config{})
			w := &crashWorld{store: s, committed: map[string]int64{}, heard: map[string]int64{}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() { w.write(ctx, fmt.Sprint("agg", i)) })
			}
			failed := make(chan error, 1)
			wg.Go(func() { failed <- w.forward(ctx) })
			for round := range 3 {
				w.await(t, 200*(round+1))
				server.script("crash")
				server.script("start")
			}
			w.await(t, 1000)
			w.stop.Store(true)
			require.Eventually(t, w.complete, time.Minute, 10*time.Millisecond, "committed records are missing")
			require.Eventually(t, func() bool {
				b, err := s.Backlog(t.Context())
				return err == nil && b.Ready+b.Delayed+b.Dead == 0
			}, time.Minute, 10*time.Millisecond, "records are left")
			cancel()
			wg.Wait()
			require.NoError(t, <-failed)
		})
	}
}

// Under REPEATABLE READ with innodb_snapshot_isolation, which newer MariaDB has on
// by default, a transaction that meets a newer count is told to try again.
func TestServer_SnapshotIsolation(t *testing.T) {
	server := newServer(t, "MariaDB", "--innodb-snapshot-isolation=1 --lower-case-table-names=1 --transaction-isolation=REPEATABLE-READ")
	s := open(t, server.dsn(), mysql.Config{Prefix: "shop_"})
	require.NoError(t, publish(t.Context(), s, "t", msg("x", "1")))
	old := begin(t, s, sql.LevelRepeatableRead)
	var n int
	require.NoError(t, old.QueryRowContext(t.Context(), "select count(*) from shop_outbox").Scan(&n))
	require.NoError(t, publish(t.Context(), s, "t", msg("x", "2")))
	require.ErrorContains(t, s.Publisher(old).Publish("t", msg("x", "never")), "try it again")
	require.NoError(t, old.Rollback())
	require.Equal(t, map[string]int64{"x": 2}, drainAll(t, s))
	lease, err := s.Lease(t.Context(), "drain", time.Minute)
	require.NoError(t, err)
	require.Len(t, lease.Shards, backends.Shards)
}
