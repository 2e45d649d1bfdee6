package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/forwarder"
)

// childVariable makes this program a forwarder: its value is the schema.
const childVariable = "OUTMILL_BENCH_CHILD"

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
	s, err := postgres.Open(ctx, os.Getenv("OUTMILL_POSTGRES_URL"), postgres.Config{Schema: schema})
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
	cmd.Env = append(os.Environ(), childVariable+"="+schema, "OUTMILL_POSTGRES_URL="+b.with("application_name="+schema))
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

func stopChild(cmd *exec.Cmd) error {
	return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
}

// memory watches a forwarder, a process of its own, drain a large backlog.
func memory(ctx context.Context, b *bench) error {
	schema := b.newSchema()
	s, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer drop()
	if err := b.fill(ctx, s, "orders", b.backlog); err != nil {
		return err
	}
	began := time.Now()
	cmd, err := b.startChild(ctx, schema)
	if err != nil {
		return err
	}
	resident, err := watchMemory(ctx, s, cmd.Process.Pid)
	took := time.Since(began)
	peak, noPeak := statusMiB(cmd.Process.Pid, "VmHWM")
	if err := errors.Join(err, noPeak, stopChild(cmd)); err != nil {
		return err
	}
	b.note(fmt.Sprintf("draining a backlog of %d", b.backlog), float64(b.backlog)/took.Seconds(), "msg/s", "")
	b.show(sample{Name: "resident memory, every 100 ms", Unit: "MiB", Values: resident})
	b.printf("  through the drain, in tenths: %s MiB\n", tenths(resident))
	b.atMost("peak resident memory", peak, 64, "MiB")
	n := len(resident)
	b.atMost("median of its last quarter against the second: is it flat?", quantile(resident[n-(n+3)/4:], 0.5)/quantile(resident[n/4:n-n/2], 0.5), 1.25, "×")
	return nil
}

// tenths lists the medians of ten parts of a series.
func tenths(values []float64) string {
	var out []string
	for i := range 10 {
		if part := values[i*len(values)/10 : (i+1)*len(values)/10]; len(part) > 0 {
			out = append(out, number(quantile(part, 0.5)))
		}
	}
	return strings.Join(out, ", ")
}

// watchMemory samples a process until the outbox is empty, which is asked for
// less often: it costs more.
func watchMemory(ctx context.Context, s *postgres.Store, pid int) (resident []float64, err error) {
	for until := time.Now().Add(2 * patience); time.Now().Before(until); {
		for range 5 {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return nil, err
			}
			rss, err := statusMiB(pid, "VmRSS")
			if err != nil {
				return nil, err
			}
			resident = append(resident, rss)
		}
		backlog, err := s.Backlog(ctx)
		if err != nil || backlog.Ready == 0 {
			return resident, err
		}
	}
	return nil, errors.New("the backlog was not drained in time")
}

// idle adds up the CPU time of a forwarder with nothing to do and of the
// database's processes that serve it.
func idle(ctx context.Context, b *bench) error {
	schema := b.newSchema()
	_, drop, err := b.store(ctx, postgres.Config{Schema: schema})
	if err != nil {
		return err
	}
	defer drop()
	cmd, err := b.startChild(ctx, schema)
	if err != nil {
		return err
	}
	client, server, err := b.watchIdle(ctx, cmd.Process.Pid, schema)
	if err := errors.Join(err, stopChild(cmd)); err != nil {
		return err
	}
	b.note(fmt.Sprintf("client, %v", b.idle), client, "%", "of one core")
	b.note("its sessions in the database", server, "%", "of one core")
	b.atMost("an idle forwarder, client and server together", client+server, 3, "%")
	return nil
}

// watchIdle returns CPU time in percent of one core.
func (b *bench) watchIdle(ctx context.Context, pid int, schema string) (client, server float64, err error) {
	settle := time.Now().Add(min(3*time.Second, b.idle))
	for time.Now().Before(settle) {
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return 0, 0, err
		}
	}
	before, err := b.sessions(ctx, schema)
	if err != nil {
		return 0, 0, err
	}
	clientBefore, began := cpuOf(pid), time.Now()
	if err := pause(ctx, b.idle); err != nil {
		return 0, 0, err
	}
	took := time.Since(began).Seconds()
	client = cpuOf(pid) - clientBefore
	after, err := b.sessions(ctx, schema)
	if err != nil {
		return 0, 0, err
	}
	if len(after) == 0 {
		return 0, 0, errors.New("the forwarder has no session in the database: is the server on this machine?")
	}
	return 100 * client / took, 100 * grown(before, after) / took, nil
}

// grown adds up what sessions have used since. Of one that is new it is all.
func grown(before, after map[int]float64) (seconds float64) {
	for pid, cpu := range after {
		seconds += cpu - before[pid]
	}
	return seconds
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sessions are the server's processes that work for a child, with their CPU time.
func (b *bench) sessions(ctx context.Context, name string) (map[int]float64, error) {
	var pids []int
	err := b.pool.QueryRow(ctx, "select coalesce(array_agg(pid), '{}') from pg_stat_activity where application_name = $1", name).Scan(&pids)
	out := map[int]float64{}
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			out[pid] = cpuOf(pid)
		}
	}
	return out, err
}

// cpuOf is the CPU time of a process, in seconds. One that has ended counts 0.
func cpuOf(pid int) (seconds float64) {
	const ticks = 100 // a second, on Linux
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, i := range []int{11, 12} { // utime and stime, after the name
		n, _ := strconv.ParseFloat(fields[i], 64)
		seconds += n / ticks
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
