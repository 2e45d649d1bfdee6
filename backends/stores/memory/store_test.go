package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

func TestNew_ReportsEveryFault(t *testing.T) {
	_, err := memory.New(memory.Config{MaxPayload: -1, Retention: -1})
	require.ErrorContains(t, err, "MaxPayload")
	require.ErrorContains(t, err, "Retention")
}

func TestMaxPayload_IsKept(t *testing.T) {
	s := open(t, memory.Config{MaxPayload: 4})
	tx := s.Begin()
	require.ErrorContains(t, s.Publisher(tx).Publish("t", msg("x", "12345")), "payload")
	require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "1234")))
}

func TestSequencesOff_OnlySuppliedOnes(t *testing.T) {
	s := open(t, memory.Config{SequencesOff: true})
	own := msg("x", "2")
	backends.SetSequence(own, 9)
	publish(t, s, "t", msg("x", "1"), own)
	got := readAll(t, s)
	require.Len(t, got, 2)
	require.Zero(t, got[0].Sequence)
	require.EqualValues(t, 9, got[1].Sequence)

	// Without a sequence there is nothing to hold.
	first, second := s.Begin(), s.Begin()
	require.NoError(t, s.Publisher(first).Publish("t", msg("x", "3")))
	require.NoError(t, s.Publisher(second).Publish("t", msg("x", "4")))
}

func TestPurge_OnlyWhatIsPastItsRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memory.Config{Retention: time.Hour})
		publish(t, s, "t", msg("x", "1"), msg("x", "2"), msg("x", "3"), msg("y", "1"))
		l, err := s.Lease(t.Context(), "o", 24*time.Hour)
		require.NoError(t, err)
		r := s.Reader()
		got, err := r.Read(t.Context(), l, backends.Want{Limit: 10})
		require.NoError(t, err)
		var outcomes []backends.Outcome
		for i := range got {
			if got[i].Aggregate == "x" {
				outcomes = append(outcomes, backends.Outcome{Record: &got[i], Action: backends.Delivered})
			}
		}
		require.NoError(t, r.Settle(t.Context(), l, outcomes))
		require.NoError(t, r.Settle(t.Context(), l, outcomes), "kept once")
		purge := func(limit, want int) {
			t.Helper()
			n, err := s.Purge(t.Context(), limit)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		<-time.After(time.Hour)
		purge(10, 0)
		<-time.After(time.Millisecond)
		purge(2, 2)
		purge(10, 1)
		purge(10, 0)
		require.Len(t, readAll(t, s), 1, "what is not delivered stays")
	})
}

func TestLease_EndsWithItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memory.Config{})
		a, err := s.Lease(t.Context(), "a", 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(10*time.Second), a.Deadline)
		<-time.After(10*time.Second - 1)
		b, err := s.Lease(t.Context(), "b", time.Minute)
		require.NoError(t, err)
		require.Empty(t, b.Shards, "taken before its term had ended")
		<-time.After(1)
		b, err = s.Lease(t.Context(), "b", time.Minute)
		require.NoError(t, err)
		require.Len(t, b.Shards, backends.Shards)
		backlog, err := s.Backlog(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, backlog.Owners)
	})
}

func TestLease_NeedsOwnerAndTerm(t *testing.T) {
	s := open(t, memory.Config{})
	_, err := s.Lease(t.Context(), "", time.Second)
	require.ErrorContains(t, err, "owner")
	_, err = s.Lease(t.Context(), "a", 0)
	require.ErrorContains(t, err, "term")
}

func TestDeadLetters_LimitsBelowZeroAreRefused(t *testing.T) {
	s := open(t, memory.Config{})
	_, err := s.Dead(t.Context(), backends.DeadFilter{Limit: -1})
	require.ErrorContains(t, err, "Limit")
	_, err = s.Parked(t.Context(), "", -1)
	require.ErrorContains(t, err, "limit")
}

func TestStore_ACancelledContextChangesNothing(t *testing.T) {
	s := open(t, memory.Config{})
	publish(t, s, "t", msg("x", "1"))
	got := readAll(t, s)
	l, err := s.Lease(t.Context(), "o", time.Minute)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := s.Reader()
	_, readErr := r.Read(ctx, l, backends.Want{Limit: 1})
	_, leaseErr := s.Lease(ctx, "p", time.Minute)
	_, backlogErr := s.Backlog(ctx)
	_, deadErr := s.Dead(ctx, backends.DeadFilter{})
	_, parkedErr := s.Parked(ctx, "", 1)
	_, requeueErr := s.Requeue(ctx, backends.DeadTarget{Aggregate: "x"})
	_, discardErr := s.Discard(ctx, backends.DeadTarget{Aggregate: "x"})
	_, purgeErr := s.Purge(ctx, 1)
	for _, err := range []error{
		readErr, leaseErr, backlogErr, deadErr, parkedErr, requeueErr, discardErr, purgeErr,
		s.Check(ctx), s.Release(ctx, l),
		r.Settle(ctx, l, []backends.Outcome{{Record: &got[0], Action: backends.Delivered}}),
	} {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Len(t, readAll(t, s), 1)
}
