package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var orderCases = []testCase{
	{"Order/a late commit is neither skipped nor overtaken", func(f *fixture) {
		s := f.open("a")
		// 1. The first transaction appends for x: the lower id.
		// 2. The second appends for y, the higher id, and commits.
		// 3. A full turn delivers y.
		// 4. The first commits; x must come, then what follows it.
		for range 20 {
			first := f.begin()
			require.NoError(f, first.Publisher().Publish("t", msg("x", "x")))
			if second := f.beginBeside(); second != nil {
				require.NoError(f, second.Publisher().Publish("t", msg("y", "y")))
				f.commit(second)
				require.Equal(f, []string{"y"}, payloads(s.drainTo(1)))
			}
			f.commit(first)
			f.publish("t", msg("x", "after"))
			require.Equal(f, []string{"x", "after"}, payloads(s.drainTo(2)))
		}
	}},
	{"Order/the one that has the aggregate first comes first", func(f *fixture) {
		s := f.open("a")
		for range 20 {
			// The first transaction is the older one, but it comes second to x.
			first := f.begin()
			require.NoError(f, first.Publisher().Publish("t", msg("y", "y")))
			second := f.beginBeside()
			if second == nil {
				f.commit(first)
				_ = s.drainTo(1)
				return
			}
			require.NoError(f, second.Publisher().Publish("t", msg("x", "1")))
			done := make(chan error, 1)
			go func() { done <- first.Publisher().Publish("t", msg("x", "2")) }()
			f.commit(second)
			require.NoError(f, <-done)
			f.commit(first)
			got := s.drainTo(3)
			require.Equal(f, numbers(1, 2), payloads(of(got, "x")))
		}
	}},
	{"Order/concurrent writers", func(f *fixture) { concurrentWriters(f, 8, 40) }},
	{"Order/a retry is not overtaken and not early", func(f *fixture) {
		f.series("t", "x", 3)
		f.publish("t", msg("y", "1"))
		s := f.open("a")
		got := s.read(10)
		x := of(got, "x")
		o := outcome(&x[0], backends.Retry)
		o.After = waitABit
		due := time.Now().Add(waitABit)
		s.settle(append(deliveries(of(got, "y")), o)...)
		f.publish("t", msg("x", "4"), msg("z", "1"))
		records, first := apart(s.arrivals(5))
		require.Equal(f, numbers(1, 4), payloads(records["x"]), "the retry was overtaken")
		require.Equal(f, 1, records["x"][0].Attempts)
		require.False(f, first["x"].Before(due), "the retry came early")
		require.True(f, first["z"].Before(first["x"]) || first["z"].After(due), "others must flow")
	}},
	{"Order/a retry waits for its time after a take-over too", func(f *fixture) {
		f.series("t", "x", 2)
		s := f.open("a")
		got := s.read(10)
		o := outcome(&got[0], backends.Retry)
		o.After = waitABit
		due := time.Now().Add(waitABit)
		s.settle(o)
		require.NoError(f, f.box.Release(f.Context(), s.lease))
		require.NoError(f, f.box.Release(f.Context(), backends.Lease{Owner: "a"}))
		records, first := apart(f.open("b").arrivals(2))
		require.Equal(f, numbers(1, 2), payloads(records["x"]))
		require.False(f, first["x"].Before(due), "the retry came early")
	}},
}

func concurrentWriters(f *fixture, writers, each int) {
	ctx, cancel := context.WithTimeout(f.Context(), 2*limit)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for range each {
				if err := f.writeSome(ctx, r); err != nil {
					errs <- fmt.Errorf("writer %d: %w", w, err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	go func() { wg.Wait(); close(stop) }()
	s := f.open("a")
	var got []backends.Record
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		part := s.read(5)
		s.settle(deliveries(part)...)
		got = append(got, part...)
	}
	got = append(got, s.drain(50)...)
	select {
	case err := <-errs:
		require.NoError(f, err)
	default:
	}
	require.Len(f, got, writers*each)
	for a := range 6 {
		rows := of(got, "a"+strconv.Itoa(a))
		require.Equal(f, upTo(len(rows)), sequences(rows), "aggregate a%d", a)
	}
}

func (f *fixture) writeSome(ctx context.Context, r *rand.Rand) error {
	tx, err := f.store.Begin(ctx)
	if err != nil {
		return err
	}
	if err := tx.Publisher().Publish("t", msg("a"+strconv.Itoa(r.IntN(6)), "m")); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
