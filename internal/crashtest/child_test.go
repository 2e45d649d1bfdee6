// Package crashtest runs forwarders as processes and treats them badly.
package crashtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/testenv"
)

// childVariable makes the test program a forwarder; its value is the schema.
const childVariable = "OUTMILL_CRASHTEST_CHILD"

func TestMain(m *testing.M) {
	if schema := os.Getenv(childVariable); schema != "" {
		if err := child(schema); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// term is the lease of the children: short, so that a test sees its end.
const term = 3 * time.Second

func child(schema string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := postgres.Open(ctx, os.Getenv(testenv.PostgresURL), postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer store.Close()
	broker, err := kafka.New(kafka.Config{Brokers: strings.Split(os.Getenv(testenv.KafkaBrokers), ",")})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(store, broker, forwarder.Config{
		Batch: 100, Lease: term, PublishTimeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	err = fwd.Run(ctx)
	closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, broker.Close(closing))
}

// process is a child. Only what was started here is signalled.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *strings.Builder
}

func start(t *testing.T, schema string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self), log: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), childVariable+"="+schema)
	p.cmd.Stderr = p.log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("forwarder %d said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// kill ends a child as a power cut would.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // says that it was killed
}

// stop asks a child to stop and wants a clean exit.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	require.NoError(p.t, p.cmd.Wait(), "a forwarder told to stop did not exit with 0")
}
