package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// childVariable makes this program a forwarder: its value is the schema.
const childVariable = "OUTMILL_BENCH_CHILD"

// childName is how a child's sessions are found in the database.
const childName = "outmill-bench-child"

// child forwards into nothing until it is told to stop.
func child() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := forward(ctx, os.Getenv(childVariable)); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func forward(ctx context.Context, schema string) error {
	url := os.Getenv("OUTMILL_POSTGRES_URL")
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	s, err := postgres.Open(ctx, url+sep+"application_name="+childName, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer s.Close()
	fwd, err := forwarder.New(s, nothing{}, quiet(forwarder.Config{}))
	if err != nil {
		return err
	}
	return fwd.Run(ctx)
}

// startChild runs a forwarder in a process of its own.
func (b *bench) startChild(ctx context.Context, schema string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVariable+"="+schema, "OUTMILL_POSTGRES_URL="+b.url)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

func stopChild(cmd *exec.Cmd) error {
	return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
}

func memory(ctx context.Context, b *bench) error {
	schema := newSchema()
	s, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer drop()
	if err := b.fill(ctx, s, "orders", b.backlog); err != nil {
		return err
	}
	start := time.Now()
	cmd, err := b.startChild(ctx, schema)
	if err != nil {
		return err
	}
	var resident []float64
	for {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), stopChild(cmd))
		}
		if rss, err := statusMiB(cmd.Process.Pid, "VmRSS"); err == nil {
			resident = append(resident, rss)
		}
		backlog, err := s.Backlog(ctx)
		if err != nil {
			return errors.Join(err, stopChild(cmd))
		}
		if backlog.Ready == 0 {
			break
		}
		if time.Since(start) > 10*time.Minute {
			return errors.Join(fmt.Errorf("%d or more records are left", backlog.Ready), stopChild(cmd))
		}
	}
	took := time.Since(start)
	peak, err := statusMiB(cmd.Process.Pid, "VmHWM")
	if err := errors.Join(err, stopChild(cmd)); err != nil {
		return err
	}
	half := len(resident) / 2
	b.printf("%-58s %12s msg/s\n", fmt.Sprintf("draining a backlog of %d", b.backlog), number(float64(b.backlog)/took.Seconds()))
	b.printf("%-58s first half %s MiB, second half %s MiB\n", "resident memory, greatest", number(slices.Max(resident[:half+1])), number(slices.Max(resident[half:])))
	b.atMost("peak resident memory", peak, 64, "MiB")
	return nil
}

func idle(ctx context.Context, b *bench) error {
	schema := newSchema()
	_, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer drop()
	cmd, err := b.startChild(ctx, schema)
	if err != nil {
		return err
	}
	select {
	case <-time.After(3 * time.Second): // until it has settled down
	case <-ctx.Done():
	}
	pids, err := b.sessions(ctx)
	if err != nil {
		return errors.Join(err, stopChild(cmd))
	}
	before, beforeDB := cpuOf(cmd.Process.Pid), cpuOf(pids...)
	start := time.Now()
	select {
	case <-time.After(b.idle):
	case <-ctx.Done():
	}
	client, server := cpuOf(cmd.Process.Pid)-before, cpuOf(pids...)-beforeDB
	took := time.Since(start).Seconds()
	if err := stopChild(cmd); err != nil {
		return err
	}
	b.printf("%-58s client %s %%, server %s %% of one core\n", fmt.Sprintf("an idle forwarder, %v", b.idle), number(100*client/took), number(100*server/took))
	b.atMost("an idle forwarder, client and server together", 100*(client+server)/took, 3, "%")
	return nil
}

// sessions are the server's processes that work for the child.
func (b *bench) sessions(ctx context.Context) (pids []int, err error) {
	err = b.pool.QueryRow(ctx, "select array_agg(pid) from pg_stat_activity where application_name = $1", childName).Scan(&pids)
	return pids, err
}

// cpuOf is the CPU time of processes, in seconds. One that has ended counts 0.
func cpuOf(pids ...int) (seconds float64) {
	const ticks = 100 // a second, on Linux
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, i := range []int{11, 12} { // utime and stime, after the name
			n, _ := strconv.ParseFloat(fields[i], 64)
			seconds += n / ticks
		}
	}
	return seconds
}

// statusMiB reads a size out of a process's status.
func statusMiB(pid int, field string) (float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && name == field {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of process %d", field, pid)
}
