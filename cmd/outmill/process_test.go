package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// asProgram makes the test program behave as outmill.
const asProgram = "TEST_AS_OUTMILL"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(execute(context.Background(), os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// limit is how long a test waits for anything.
const limit = 30 * time.Second

// text is a buffer that a process fills while a test reads.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// process is outmill at work.
type process struct {
	*testing.T
	cmd      *exec.Cmd
	out, err text
	ended    chan struct{}
	result   error // once it has ended
}

// start runs outmill with a clean environment and what is given.
func start(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	p := prepare(t, environ, args...)
	p.begin()
	return p
}

func prepare(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	p := &process{T: t, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	p.cmd.Env = append([]string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	return p
}

func (p *process) begin() {
	p.Helper()
	require.NoError(p, p.cmd.Start())
	go func() {
		p.result = p.cmd.Wait()
		close(p.ended)
	}()
	p.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails where it has ended
		<-p.ended
	})
}

// code waits for the end and returns the exit code.
func (p *process) code() int {
	p.Helper()
	select {
	case <-p.ended:
		var exit *exec.ExitError
		if errors.As(p.result, &exit) {
			return exit.ExitCode()
		}
		require.NoError(p, p.result)
		return 0
	case <-time.After(limit):
		require.Fail(p, "the process did not end", "%s", p.err.String())
		return -1
	}
}

func (p *process) signal(s syscall.Signal) { require.NoError(p, p.cmd.Process.Signal(s)) }

// says waits until standard error holds a text.
func (p *process) says(what string) {
	p.Helper()
	require.Eventually(p, func() bool { return strings.Contains(p.err.String(), what) }, limit, 5*time.Millisecond, "it never said %q", what)
}

// outmill runs a command to its end.
func outmill(t *testing.T, environ []string, args ...string) (code int, out, err string) {
	t.Helper()
	p := start(t, environ, args...)
	code = p.code()
	return code, p.out.String(), p.err.String()
}

// file writes a configuration and returns its path.
func file(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outmill.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// shop is a SQLite database with an outbox.
type shop struct {
	*testing.T
	path  string
	store *sqlite.Store
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{T: t, path: filepath.Join(t.TempDir(), "shop.db")}
	var err error
	s.store, err = sqlite.Open(t.Context(), s.path, sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.store.Close()) })
	require.NoError(t, s.store.Migrate(t.Context()))
	return s
}

// publish commits n messages, spread over aggregates named after the topic, and
// returns their ids.
func (s *shop) publish(topic string, n, aggregates int) map[string]bool {
	s.Helper()
	msgs, ids := messages(topic, n, aggregates)
	tx, err := s.store.DB().BeginTx(s.Context(), nil)
	require.NoError(s, err)
	require.NoError(s, s.store.Publisher(tx).Publish(topic, msgs...))
	require.NoError(s, tx.Commit())
	return ids
}

func messages(topic string, n, aggregates int) (msgs []*message.Message, ids map[string]bool) {
	ids = map[string]bool{}
	for i := range n {
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"n": %d}`, i))
		backends.SetAggregate(msg, fmt.Sprintf("%s-%d", topic, i%aggregates))
		msgs, ids[msg.UUID] = append(msgs, msg), true
	}
	return msgs, ids
}

// line is what stdout: prints.
type line struct {
	MessageID string `json:"message_id"`
	Topic     string
	Aggregate string
	Sequence  int64
	Payload   json.RawMessage
}

func lines(t *testing.T, out string) []line {
	t.Helper()
	var all []line
	scan := bufio.NewScanner(strings.NewReader(out))
	for scan.Scan() {
		var l line
		require.NoError(t, json.Unmarshal(scan.Bytes(), &l), scan.Text())
		all = append(all, l)
	}
	return all
}

// inOrder wants exactly these messages, each aggregate by its sequence.
func inOrder(t *testing.T, want map[string]bool, got []line) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]int64{}
	for _, l := range got {
		require.True(t, want[l.MessageID], "a message was invented")
		require.False(t, seen[l.MessageID], "a message came twice though nothing failed")
		seen[l.MessageID] = true
		require.Equal(t, last[l.Aggregate]+1, l.Sequence, l.Aggregate)
		last[l.Aggregate] = l.Sequence
	}
	require.Len(t, seen, len(want), "messages were lost")
}

// first is the first line of an aggregate.
func first(got []line, aggregate string) line {
	for _, l := range got {
		if l.Aggregate == aggregate {
			return l
		}
	}
	return line{}
}
