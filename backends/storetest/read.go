package storetest

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

var readCases = []testCase{
	{"Read/what has no outcome comes again", func(f *fixture) {
		f.series("t", "x", 5)
		s := f.open("a")
		got := s.read(5)
		require.Equal(f, numbers(1, 5), payloads(got))
		s.settle(deliveries(got[:2])...)
		require.Equal(f, numbers(3, 5), payloads(s.read(5)))
		require.Equal(f, numbers(3, 5), payloads(s.read(5)))
	}},
	{"Read/a restart in mid-batch loses nothing", func(f *fixture) {
		f.series("t", "x", 10)
		f.series("t", "", 10)
		a := f.open("a")
		got := a.read(20)
		require.Len(f, got, 20)
		a.settle(deliveries(got[:3])...)
		require.NoError(f, f.box.Release(f.Context(), a.lease))
		require.NoError(f, f.box.Release(f.Context(), backends.Lease{Owner: "a"}))
		require.Len(f, f.open("b").drain(3), 17)
	}},
	{"Read/limits are kept and all comes in the end", func(f *fixture) {
		for i := range 30 {
			f.series("t", "a"+strconv.Itoa(i), 3)
		}
		s := f.open("a")
		var got []backends.Record
		for len(got) < 90 {
			part := s.read(4)
			require.NotEmpty(f, part, "%d of 90 came", len(got))
			require.LessOrEqual(f, len(part), 4)
			s.settle(deliveries(part)...)
			got = append(got, part...)
		}
		for i := range 30 {
			require.Equal(f, numbers(1, 3), payloads(of(got, "a"+strconv.Itoa(i))))
		}
	}},
	{"Read/a full shard starves no other", func(f *fixture) {
		f.publish("t", repeat("hog", 1000)...) // a hundred reads of nothing else
		var small []*message.Message           // in shards before and after it
		for i := range 20 {
			small = append(small, msg("small"+strconv.Itoa(i), "small"))
		}
		f.publish("t", small...)
		s := f.open("a")
		seen := 0
		for turn := 0; seen < len(small); turn++ {
			require.Less(f, turn, 70, "%d of %d small aggregates were starved", len(small)-seen, len(small))
			got := s.read(10)
			s.settle(deliveries(got)...)
			seen += len(got) - len(of(got, "hog"))
		}
	}},
	{"Read/failing records at the head do not starve the rest", func(f *fixture) {
		for i := range 10 {
			f.publish("bad", msg("", "bad"+strconv.Itoa(i)))
		}
		f.publish("t", repeat("", 200)...)
		s := f.open("a")
		delivered := 0
		for turn := 0; delivered < 200; turn++ {
			require.Less(f, turn, 500, "only %d of 200 good records came", delivered)
			got := s.read(10)
			var outcomes []backends.Outcome
			for i := range got {
				o := outcome(&got[i], backends.Delivered)
				if got[i].Topic == "bad" {
					o = outcome(&got[i], backends.Retry)
					o.After = limit
				} else {
					delivered++
				}
				outcomes = append(outcomes, o)
			}
			s.settle(outcomes...)
		}
	}},
	{"Read/bytes are limited, one record always comes", func(f *fixture) {
		for range 6 {
			m := msg("x", "")
			m.Payload = make([]byte, 1000)
			f.publish("t", m)
		}
		s := f.open("a")
		seen := 0
		for seen < 6 {
			got := s.readWant(backends.Want{Limit: 10, MaxBytes: 1500})
			require.NotEmpty(f, got)
			require.LessOrEqual(f, len(got), 2)
			s.settle(deliveries(got)...)
			seen += len(got)
		}
		f.publish("t", msg("x", "longer than a byte"))
		require.Len(f, s.readWant(backends.Want{Limit: 10, MaxBytes: 1}), 1)
	}},
	{"Read/topics that are skipped are found again", func(f *fixture) {
		f.publish("down", msg("x", "1"), msg("y", "1"))
		f.publish("up", msg("x", "u1"), msg("z", "u1"))
		s := f.open("a")
		skip := backends.Want{Limit: 10, SkipTopics: []string{"down"}}
		got := s.readWant(skip)
		require.ElementsMatch(f, []string{"u1", "u1"}, payloads(got))
		s.settle(deliveries(got)...)
		require.Empty(f, s.readWant(skip))
		f.publish("down", msg("x", "2"))
		require.Empty(f, s.readWant(skip))
		got = s.drainTo(3)
		require.Equal(f, numbers(1, 2), payloads(of(got, "x")))
	}},
	{"Read/a topic skipped after its records were in hand", func(f *fixture) {
		f.series("down", "x", 3)
		s := f.open("a")
		got := s.read(10)
		s.settle(outcome(&got[0], backends.Release), outcome(&got[1], backends.Release), outcome(&got[2], backends.Release))
		require.Empty(f, s.readWant(backends.Want{Limit: 10, SkipTopics: []string{"down"}}))
		require.Equal(f, numbers(1, 3), payloads(s.drain(10)))
	}},
	{"Read/a released record waits if told to", func(f *fixture) {
		f.series("t", "x", 2)
		s := f.open("a")
		got := s.read(10)
		o := outcome(&got[0], backends.Release)
		o.After = waitABit
		due := time.Now().Add(waitABit)
		s.settle(o, outcome(&got[1], backends.Release))
		records, first := apart(s.arrivals(2))
		require.Equal(f, numbers(1, 2), payloads(records["x"]))
		require.False(f, first["x"].Before(due), "it did not wait")
		require.Zero(f, records["x"][0].Attempts)
	}},
	{"Read/only leased shards", func(f *fixture) {
		for i := range 200 {
			f.publish("t", msg("a"+strconv.Itoa(i), "1"))
		}
		s := f.open("a")
		part := s.lease.Only(func(shard int) bool { return shard%4 == 1 })
		got, err := s.reader.Read(f.Context(), part, backends.Want{Limit: 1000})
		require.NoError(f, err)
		require.NotEmpty(f, got)
		require.Less(f, len(got), 200)
		for _, r := range got {
			require.Equal(f, 1, r.Shard%4)
		}
		// The reader gains the others and loses none of them.
		require.Len(f, s.read(1000), 200)
		none := s.lease.Only(func(int) bool { return false })
		got, err = s.reader.Read(f.Context(), none, backends.Want{Limit: 10})
		require.NoError(f, err)
		require.Empty(f, got)
		require.Len(f, s.drain(1000), 200)
	}},
	{"Read/a limit of nothing is refused", func(f *fixture) {
		s := f.open("a")
		_, err := s.reader.Read(f.Context(), s.lease, backends.Want{})
		require.ErrorContains(f, err, "Limit")
	}},
}
