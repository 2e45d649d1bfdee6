package consumer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/consumer"
)

// stream is what a broker has: messages of several aggregates, some twice, some
// neighbours swapped, delivered by several at once until each was acked.
type stream struct {
	mu   sync.Mutex
	msgs []*message.Message
}

func newStream(aggregates, each int, r *rand.Rand) *stream {
	s := &stream{}
	for n := 1; n <= each; n++ {
		for a := range aggregates {
			s.msgs = append(s.msgs, order(fmt.Sprintf("a%d", a), int64(n)))
			if r.Float64() < 0.05 {
				s.msgs = append(s.msgs, order(fmt.Sprintf("a%d", a), int64(n)))
			}
		}
	}
	for i := range len(s.msgs) - aggregates {
		if r.Float64() < 0.05 {
			j := i + aggregates
			s.msgs[i], s.msgs[j] = s.msgs[j], s.msgs[i]
		}
	}
	return s
}

func (s *stream) take() *message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.msgs) == 0 {
		return nil
	}
	m := s.msgs[0]
	s.msgs = s.msgs[1:]
	return m
}

func (s *stream) give(m *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.msgs = append([]*message.Message{m}, s.msgs...)
}

// inOrder says that each aggregate's effects are 1, 2, 3 … each, once and in order.
func inOrder(t testing.TB, effects []string, aggregates, each int) {
	t.Helper()
	next := map[string]int{}
	for _, e := range effects {
		a, n, _ := strings.Cut(e, "/")
		next[a]++
		require.Equal(t, fmt.Sprint(next[a]), n, "aggregate %s", a)
	}
	require.Len(t, next, aggregates)
	for a, n := range next {
		require.Equal(t, each, n, "aggregate %s", a)
	}
}

// 16 consumers in four processes, 50 aggregates, duplicates, swapped neighbours,
// handlers that fail and panic: effects once and in order, and no deadlock.
func TestMany_NoDeadlockAndNothingTwice(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const aggregates, each = 50, 12
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		s := newStream(aggregates, each, rand.New(rand.NewPCG(seed, 1)))
		var calls, fatal atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			i := w.instance(consumer.Config{SweepInterval: 20 * time.Millisecond, MaxAttempts: -1}, func(*message.Message) ([]*message.Message, error) {
				switch calls.Add(1) % 23 {
				case 7:
					return nil, errors.New("random failure")
				case 13:
					panic("random panic")
				}
				return nil, nil
			})
			i.run()
			for range 4 {
				wg.Go(func() {
					for m := s.take(); m != nil; m = s.take() {
						if err := i.deliver(m); err != nil {
							if strings.Contains(err.Error(), "deadlock") || strings.Contains(err.Error(), "lock timeout") {
								fatal.Add(1)
							}
							s.give(m)
						}
					}
				})
			}
		}
		wg.Wait()
		for end := time.Now().Add(limit); len(w.effects()) < aggregates*each && time.Now().Before(end); {
			<-time.After(10 * time.Millisecond)
		}
		inOrder(t, w.effects(), aggregates, each)
		require.Zero(t, fatal.Load(), "deadlocks")
	})
}
