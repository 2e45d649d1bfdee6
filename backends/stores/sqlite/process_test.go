package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// What a process started by a test does, and on which database.
const (
	childPart = "OUTMILL_SQLITE_TEST_PART"
	childPath = "OUTMILL_SQLITE_TEST_PATH"
)

const (
	processMessages   = 400 // of each appending process
	processAggregates = 5
)

func child(part, path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err == nil {
		err = s.Migrate(ctx)
	}
	if err == nil {
		err = map[string]func(context.Context, *sqlite.Store) error{
			"append": childAppend, "forward": childForward, "hang": childHang,
		}[part](ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, part+":", err)
		return 1
	}
	return 0
}

// childAppend rolls every seventh back and tells what it has committed.
func childAppend(ctx context.Context, s *sqlite.Store) error {
	for i := range processMessages {
		aggregate := fmt.Sprint("agg", i%processAggregates)
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := s.Publisher(tx).Publish("t", msg(aggregate, "x"), msg(aggregate, "x")); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if i%7 == 0 {
			err = tx.Rollback()
		} else if err = tx.Commit(); err == nil {
			_, err = fmt.Fprintf(os.Stdout, "%s\n%s\n", aggregate, aggregate)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// childForward takes its output for the broker. It goes on until it is killed.
func childForward(ctx context.Context, s *sqlite.Store) error {
	owner := fmt.Sprint(os.Getpid())
	reader := s.Reader()
	for {
		lease, err := s.Lease(ctx, owner, 500*time.Millisecond)
		if err != nil {
			return err
		}
		got, err := reader.Read(ctx, lease, backends.Want{Limit: 20})
		if err != nil {
			return err
		}
		if len(got) == 0 || !time.Now().Before(lease.Deadline) {
			<-time.After(time.Millisecond)
			continue
		}
		var sent strings.Builder
		outcomes := make([]backends.Outcome, len(got))
		for i := range got {
			fmt.Fprintf(&sent, "%s %d\n", got[i].Aggregate, got[i].Sequence)
			outcomes[i] = backends.Outcome{Record: &got[i], Action: backends.Delivered}
		}
		if _, err := io.WriteString(os.Stdout, sent.String()); err != nil {
			return err
		}
		if err := reader.Settle(ctx, lease, outcomes); err != nil {
			return err
		}
	}
}

// childHang dies in the middle of a transaction.
func childHang(ctx context.Context, s *sqlite.Store) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.Publisher(tx).Publish("t", msg("x", "never"), msg("y", "never")); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "appended"); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// process is a child with its output.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    io.ReadCloser
	lines  *bufio.Scanner
	errors strings.Builder
}

func start(t *testing.T, part, path string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), self)}
	p.cmd.Env = append(os.Environ(), childPart+"="+part, childPath+"="+path)
	p.cmd.Stderr = &p.errors
	p.out, err = p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.lines = bufio.NewScanner(p.out)
	return p
}

// kill ends it as a power cut would, and returns the rest it said.
func (p *process) kill() (rest []string) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill(), p.errors.String())
	rest = p.rest()
	require.Error(p.t, p.cmd.Wait())
	require.Empty(p.t, p.errors.String())
	return rest
}

func (p *process) rest() (rest []string) {
	for p.lines.Scan() {
		rest = append(rest, p.lines.Text())
	}
	return rest
}

// Two processes append to the same aggregates while others forward, each killed
// after a while. All four make the tables, at once.
func TestProcesses_AppendAndForwardAndDie(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	appenders := []*process{start(t, "append", path), start(t, "append", path)}
	committed := make(chan []string, len(appenders))
	for _, p := range appenders {
		go func() { committed <- p.rest() }()
	}
	count := map[string]int{} // committed of each aggregate
	heard := map[string]int{} // the last sequence of each that was sent
	sent, repeats := 0, 0
	hear := func(lines []string) {
		for _, line := range lines {
			var aggregate string
			var sequence int
			_, err := fmt.Sscanf(line, "%s %d", &aggregate, &sequence)
			require.NoError(t, err, "line %q", line)
			sent++
			if sequence <= heard[aggregate] {
				repeats++
				continue
			}
			require.Equal(t, heard[aggregate]+1, sequence, "%s went out of order", aggregate)
			heard[aggregate] = sequence
		}
	}
	for range 4 {
		f := start(t, "forward", path)
		for range 50 + rand.IntN(200) {
			require.True(t, f.lines.Scan(), f.errors.String())
			hear([]string{f.lines.Text()})
		}
		hear(f.kill())
	}
	for range appenders {
		for _, aggregate := range <-committed {
			count[aggregate]++
		}
	}
	for _, p := range appenders {
		require.NoError(t, p.cmd.Wait(), p.errors.String())
	}

	s := open(t, path, sqlite.Config{})
	require.Eventually(t, func() bool { // the last one's lease has to end
		lease, err := s.Lease(t.Context(), "last", time.Minute)
		require.NoError(t, err)
		return len(lease.Shards) == backends.Shards
	}, 10*time.Second, 10*time.Millisecond)
	w := &worker{t, lease(t, s, "last"), s.Reader()}
	for _, line := range w.drain() {
		hear([]string{strings.TrimSuffix(strings.Replace(line, "/", " ", 1), " x")})
	}
	require.Equal(t, count, heard)
	require.Len(t, count, processAggregates)
	t.Logf("%d committed, %d sent, %d of them repeats", sent-repeats, sent, repeats)
}

func lease(t *testing.T, s *sqlite.Store, owner string) backends.Lease {
	t.Helper()
	l, err := s.Lease(t.Context(), owner, time.Minute)
	require.NoError(t, err)
	return l
}

func TestProcesses_KilledInATransactionLeaveNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	s := open(t, path, sqlite.Config{})
	publish(t, s, msg("x", "1"))
	p := start(t, "hang", path)
	require.True(t, p.lines.Scan(), p.errors.String())
	require.Equal(t, "appended", p.lines.Text())
	b, err := s.Backlog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, b.Ready)
	p.kill()

	publish(t, s, msg("x", "2"), msg("y", "1"))
	require.ElementsMatch(t, append(expected("x", 2), expected("y", 1)...), drain(t, s))
	var verdict string
	require.NoError(t, s.DB().QueryRowContext(t.Context(), "pragma integrity_check").Scan(&verdict))
	require.Equal(t, "ok", verdict)
}

// Everyone makes the tables at once.
func TestProcesses_MigrateTogether(t *testing.T) {
	t.Parallel()
	for range 5 {
		path := filepath.Join(t.TempDir(), "x.db")
		stores := make([]*sqlite.Store, 6)
		failed := make(chan error, len(stores))
		for i := range stores {
			go func() {
				var err error
				if stores[i], err = sqlite.Open(t.Context(), path, sqlite.Config{}); err == nil {
					err = errors.Join(stores[i].Migrate(t.Context()), stores[i].Check(t.Context()), stores[i].Close())
				}
				failed <- err
			}()
		}
		for range stores {
			require.NoError(t, <-failed)
		}
	}
}
