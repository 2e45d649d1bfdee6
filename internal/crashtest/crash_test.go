package crashtest

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/testenv"
)

// Forwarders are killed, and paused for longer than their lease lasts, while
// writers write.
func TestCrash_KilledAndPaused(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d forwarders", n), func(t *testing.T) {
			w := newWorld(t)
			var running []*process
			for range n {
				running = append(running, start(t, w.schema))
			}
			stop := w.write(4, 50)
			rounds := 1
			if testenv.Long() {
				rounds = 25
			}
			for range rounds {
				// 1. One dies in the middle of things; another comes for it.
				w.pause(time.Duration(500+rand.IntN(1500)) * time.Millisecond)
				victim := rand.IntN(n)
				running[victim].kill()
				running[victim] = start(t, w.schema)
				// 2. One stands still until others have taken its shards and gone past
				// what it has in hand; then it goes on.
				w.pause(time.Duration(500+rand.IntN(1000)) * time.Millisecond)
				sleeper := running[rand.IntN(n)]
				sleeper.signal(syscall.SIGSTOP)
				w.pause(term + time.Second)
				sleeper.signal(syscall.SIGCONT)
				w.pause(time.Second)
			}
			stop()
			w.emptied(30 * time.Second)
			for _, p := range running {
				p.stop()
			}
			w.check()
		})
	}
}

// 1. Of two forwarders one is killed.
// 2. Its shards' records wait, and no longer than a term.
func TestCrash_TakeOverWithinATerm(t *testing.T) {
	w := newWorld(t)
	victim, heir := start(t, w.schema), start(t, w.schema)
	w.shared(2)
	victim.kill()
	dead := time.Now()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 { // over all shards
		require.NoError(t, w.transaction(r, 500))
	}
	w.emptied(30 * time.Second)
	took := time.Since(dead)
	require.Less(t, took, term+time.Second) // a second for a busy machine
	t.Logf("the last record of the dead forwarder's shards was settled %v after its death; the term is %v", took, term)
	heir.stop()
	w.check()
}

// A clean stop hands over at once, and nothing is sent twice.
func TestCrash_ACleanStopHandsOverAtOnce(t *testing.T) {
	w := newWorld(t)
	first, second := start(t, w.schema), start(t, w.schema)
	w.shared(2)
	stop := w.write(4, 50)
	w.pause(time.Second)
	first.stop()
	stopped := time.Now()
	stop()
	w.emptied(20 * time.Second)
	took := time.Since(stopped)
	require.Less(t, took, term-500*time.Millisecond, "that was a take-over, not a hand-over")
	t.Logf("everything was settled %v after the stop; the term is %v", took, term)
	second.stop()
	require.Zero(t, w.check(), "a clean hand-over repeats nothing")
}

// shared waits until n forwarders have all shards among them.
func (w *world) shared(n int) {
	w.Helper()
	require.Eventually(w, func() bool {
		var owners, unowned int
		err := w.pool.QueryRow(w.Context(), `select count(distinct owner), count(*) filter (where owner is null) from `+w.schema+`.outbox_shards`).
			Scan(&owners, &unowned)
		return err == nil && owners == n && unowned == 0
	}, 20*time.Second, 20*time.Millisecond, "the shards were not shared")
}
