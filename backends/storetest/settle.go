package storetest

import (
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var errStale = errors.New("a word of a former owner")

func repeat(aggregate string, n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = msg(aggregate, strconv.Itoa(i+1))
	}
	return out
}

var settleCases = []testCase{
	{"Settle/exactly what was named", func(f *fixture) {
		f.publish("t", repeat("x", 10)...)
		f.publish("t", repeat("", 10)...)
		s := f.open("a")
		got := s.read(20)
		require.Len(f, got, 20)
		loose := of(got, "")
		s.settle(deliveries(loose[3:6])...)
		f.publish("t", msg("", "late")) // beside what was read: must stay
		require.Len(f, s.drain(50), 18)
		require.Empty(f, s.read(10))
	}},
	{"Settle/a repeat is harmless", func(f *fixture) {
		f.publish("t", repeat("x", 3)...)
		s := f.open("a")
		got := s.read(1)
		s.settle(deliveries(got)...)
		s.settle(deliveries(got)...)
		require.Equal(f, numbers(2, 3), payloads(s.drain(10)))
		s.settle(deliveries(got)...)
		s.settle(outcome(&got[0], backends.Retry))
		require.Empty(f, s.read(10), "a settled record came back")
	}},
	{"Settle/an empty list is no work", func(f *fixture) {
		s := f.open("a")
		s.settle()
		require.Empty(f, s.read(10))
	}},
	{"Settle/attempts are counted once each", func(f *fixture) {
		f.publish("t", msg("x", "1"))
		s := f.open("a")
		for want := range 3 {
			got := s.readSome(10)
			require.Equal(f, want, got[0].Attempts)
			s.settle(outcome(&got[0], backends.Retry))
			s.settle(outcome(&got[0], backends.Retry)) // as after an unknown commit
		}
	}},
	{"Settle/mixed outcomes of one batch", func(f *fixture) {
		for _, a := range []string{"ok", "again", "bad", "free"} {
			f.publish("t", repeat(a, 3)...)
		}
		s := f.open("a")
		got := s.read(50)
		require.Len(f, got, 12)
		ok, again, bad, free := of(got, "ok"), of(got, "again"), of(got, "bad"), of(got, "free")
		retry := outcome(&again[0], backends.Retry)
		retry.After = waitABit
		due := time.Now().Add(waitABit)
		s.settle(append(deliveries(ok), retry, outcome(&again[1], backends.Release), outcome(&again[2], backends.Release),
			outcome(&bad[0], backends.Skip), outcome(&bad[1], backends.Release), outcome(&bad[2], backends.Release),
			outcome(&free[0], backends.Delivered), outcome(&free[1], backends.Release), outcome(&free[2], backends.Release))...)
		records, first := apart(s.arrivals(7))
		require.Equal(f, numbers(2, 3), payloads(records["bad"]))
		require.Equal(f, numbers(2, 3), payloads(records["free"]))
		require.Equal(f, numbers(1, 3), payloads(records["again"]))
		require.False(f, first["again"].Before(due), "the retry came early")
	}},
	{"Settle/nonsense is refused", func(f *fixture) {
		f.publish("t", msg("x", "1"))
		s := f.open("a")
		got := s.read(1)
		require.Error(f, s.reader.Settle(f.Context(), s.lease, []backends.Outcome{{Action: backends.Delivered}}))
		require.Error(f, s.reader.Settle(f.Context(), s.lease, []backends.Outcome{{Record: &got[0]}}))
		require.Len(f, s.drain(10), 1)
	}},
}
