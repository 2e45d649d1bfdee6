package backends_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

func TestClassOf_TheOutermostWordCounts(t *testing.T) {
	cause := errors.New("cause")
	for want, errs := range map[backends.Class][]error{
		backends.Retryable:          {nil, cause, context.Canceled},
		backends.PermanentFailure:   {backends.Permanent(cause), fmt.Errorf("x: %w", backends.Permanent(cause)), backends.Permanent(backends.Unavailable(cause))},
		backends.UnavailableFailure: {backends.Unavailable(cause), fmt.Errorf("x: %w", backends.Unavailable(backends.Permanent(cause)))},
	} {
		for _, err := range errs {
			require.Equal(t, want, backends.ClassOf(err), "%v", err)
		}
	}
}

func TestPermanentAndUnavailable_HideNothing(t *testing.T) {
	require.NoError(t, backends.Permanent(nil))
	require.NoError(t, backends.Unavailable(nil))
	for _, err := range []error{backends.Permanent(backends.ErrClosed), backends.Unavailable(backends.ErrClosed)} {
		require.ErrorIs(t, err, backends.ErrClosed)
		require.Equal(t, "closed", err.Error())
	}
}

func TestPartialError_CountsAndUnwraps(t *testing.T) {
	err := error(&backends.PartialError{Failures: []backends.Failure{
		{Index: 1, State: backends.Rejected, Err: backends.Permanent(backends.ErrSchema)},
		{Index: 4, State: backends.NotSent},
		{Index: 5, State: backends.Unknown, Err: backends.ErrClosed},
	}})
	require.Contains(t, err.Error(), "3 records")
	require.Contains(t, err.Error(), "rejected")
	require.ErrorIs(t, err, backends.ErrSchema)
	require.ErrorIs(t, err, backends.ErrClosed)
	require.NotErrorIs(t, err, backends.ErrParked)
	require.NotEmpty(t, (&backends.PartialError{}).Error())
}

func TestMessageError_NamesFieldAndRemedy(t *testing.T) {
	err := &backends.MessageError{Index: 3, MessageID: "id\n", Field: "topic", Problem: "is empty", Remedy: "name it"}
	require.Equal(t, `message 3 ("id\n"): topic is empty: name it`, err.Error())
}

func TestString_EveryValueHasAName(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range []fmt.Stringer{
		backends.Rejected, backends.Unknown, backends.NotSent,
		backends.Delivered, backends.Retry, backends.Park, backends.Skip, backends.Release,
		backends.PermanentFailure, backends.UnavailableFailure,
	} {
		require.NotEmpty(t, s.String())
		require.NotEqual(t, "invalid", s.String())
		require.False(t, seen[s.String()], s.String())
		seen[s.String()] = true
	}
	require.Equal(t, "invalid", backends.State(0).String())
	require.Equal(t, "invalid", backends.State(200).String())
	require.Equal(t, "invalid", backends.Action(0).String())
	require.Equal(t, "invalid", backends.Action(200).String())
	require.Equal(t, "retryable", backends.Class(0).String())
	require.Equal(t, "retryable", backends.Class(200).String())
}
