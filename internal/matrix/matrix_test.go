// Package matrix tries every store with every broker.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

	"github.com/outmill/outmill/backends"
)

const (
	messages   = 2000
	aggregates = 50
	writers    = 4
	limit      = 2 * time.Minute // for everything to arrive
)

// Each store feeds each broker through the outmill program, which knows nothing
// but a file of four lines. Writers write at once and roll some transactions back;
// Watermill's own subscriber reads what arrives.
func TestMatrix_EveryStoreWithEveryBroker(t *testing.T) {
	program := filepath.Join(t.TempDir(), "outmill")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/outmill")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, s := range stores {
		for _, b := range brokers {
			t.Run(s.name+" to "+b.name, func(t *testing.T) {
				forward(t, program, s.open(t), b.open(t, "matrix-"+strings.ToLower(watermill.NewShortUUID())))
			})
		}
	}
}

func forward(t *testing.T, program string, s store, b broker) {
	t.Helper()
	stop := run(t, program, s.url, b.url)
	in, err := b.subscriber.Subscribe(t.Context(), b.topic)
	require.NoError(t, err)
	var want map[string]string
	written := make(chan struct{})
	go func() {
		defer close(written)
		want = write(t, s, b.topic)
	}()
	got := read(t, in)
	<-written
	require.NoError(t, b.subscriber.Close())
	stop()
	require.Equal(t, want, got, "what was committed and what arrived")
}

// write commits messages from several goroutines and returns their aggregates by
// their ids.
func write(t *testing.T, s store, topic string) map[string]string {
	var mu sync.Mutex
	var wg sync.WaitGroup
	committed := map[string]string{}
	for range writers {
		wg.Go(func() {
			for n := 0; n < messages/writers; {
				var batch []*message.Message
				for range min(1+rand.IntN(4), messages/writers-n) {
					m := message.NewMessage(watermill.NewUUID(), []byte(`{"of": "the matrix"}`))
					backends.SetAggregate(m, fmt.Sprintf("order-%d", rand.IntN(aggregates)))
					batch = append(batch, m)
				}
				fail := rand.IntN(10) == 0
				err := s.transaction(t.Context(), func(p message.Publisher) error {
					if err := p.Publish(topic, batch...); err != nil {
						return err
					}
					if fail {
						return errRolledBack
					}
					return nil
				})
				switch {
				case fail && errors.Is(err, errRolledBack):
				case err != nil:
					t.Errorf("write: %v", err)
					return
				default:
					n += len(batch)
					mu.Lock()
					for _, m := range batch {
						committed[m.UUID] = backends.Aggregate(m)
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return committed
}

var errRolledBack = errors.New("rolled back on purpose")

// read takes messages until all are there, and wants each aggregate in order for
// a consumer that drops repeats.
func read(t *testing.T, in <-chan *message.Message) map[string]string {
	t.Helper()
	got, last := map[string]string{}, map[string]int64{}
	end := time.After(limit)
	for len(got) < messages {
		select {
		case m := <-in:
			require.NotNil(t, m, "the subscriber ended")
			if _, repeat := got[m.UUID]; !repeat {
				a := backends.Aggregate(m)
				n, ok := backends.Sequence(m)
				require.True(t, ok, "no sequence")
				require.Equal(t, last[a]+1, n, "aggregate %s", a)
				got[m.UUID], last[a] = a, n
			}
			m.Ack()
		case <-end:
			t.Fatalf("%d of %d messages arrived", len(got), messages)
		}
	}
	return got
}

// run starts outmill over a file and returns what stops it.
func run(t *testing.T, program, store, broker string) (stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outmill.yaml")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "store: %q\nbroker: %q\nhttp: off\nforwarder: {lease: 15s}\n", store, broker), 0o600))
	for _, args := range [][]string{{"migrate", "up", "--config", path}} {
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		require.NoError(t, err, "outmill %v: %s", args, out)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "run", "--config", path)
	var log strings.Builder
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	var once sync.Once
	end := func(s syscall.Signal) (err error) {
		once.Do(func() {
			_ = cmd.Process.Signal(s) // fails where it has ended
			err = cmd.Wait()
		})
		return err
	}
	t.Cleanup(func() {
		_ = end(syscall.SIGKILL)
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return func() { require.NoError(t, end(syscall.SIGTERM), "outmill ended badly: %s", log.String()) }
}
