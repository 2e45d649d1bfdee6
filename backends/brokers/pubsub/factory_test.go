package pubsub_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
)

// counting is a publisher that counts.
type counting struct {
	err    error
	calls  atomic.Int64
	closed atomic.Int64
}

func (c *counting) Publish(string, ...*message.Message) error { c.calls.Add(1); return c.err }
func (c *counting) Close() error                              { c.closed.Add(1); return nil }

func one() []backends.Record { return []backends.Record{{MessageID: "1", Topic: "t"}} }

// A factory that hangs holds up neither Publish nor Close, runs once for all
// callers, and what it makes after Close is closed.
func TestFactory_MayHang(t *testing.T) {
	p, release := &counting{}, make(chan struct{})
	var made atomic.Int64
	b, err := pubsub.NewFactory(func() (message.Publisher, error) {
		made.Add(1)
		<-release
		return p, nil
	}, pubsub.Config{})
	require.NoError(t, err)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := b.Publish(ctx, one())
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err))
	}
	require.EqualValues(t, 1, made.Load())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Close(ctx), context.DeadlineExceeded)
	close(release)
	require.Eventually(t, func() bool { return p.closed.Load() == 1 }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, b.Publish(t.Context(), one()), backends.ErrClosed)
	require.Zero(t, p.calls.Load())
}

// A factory that fails is asked again by the next call.
func TestFactory_MayFail(t *testing.T) {
	p, n := &counting{}, 0
	b, err := pubsub.NewFactory(func() (message.Publisher, error) {
		switch n++; n {
		case 1:
			return nil, errors.New("refused")
		case 2:
			return nil, nil
		case 3:
			panic("secret")
		}
		return p, nil
	}, pubsub.Config{})
	require.NoError(t, err)
	for _, text := range []string{"refused", "no publisher", "the factory panicked with a value of type string"} {
		err := b.Publish(t.Context(), one())
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "secret")
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err))
	}
	require.NoError(t, b.Publish(t.Context(), one()))
	require.NoError(t, b.Close(t.Context()))
	require.EqualValues(t, 1, p.closed.Load(), "what a factory made is closed")
}

// What was given stays open, unless it was given away.
func TestClose_OwnsWhatItIsTold(t *testing.T) {
	for own, want := range map[bool]int64{false: 0, true: 1} {
		p := &counting{}
		b, err := pubsub.New(p, pubsub.Config{ClosePublisher: own})
		require.NoError(t, err)
		require.NoError(t, b.Publish(t.Context(), one()))
		require.NoError(t, b.Close(t.Context()))
		require.NoError(t, b.Close(t.Context()))
		require.Equal(t, want, p.closed.Load())
	}
}

// A topic that cannot be reached is not tried again in the batch by the same
// lane, whatever the aggregate.
func TestPublish_AnUnavailableTopicIsLeftAlone(t *testing.T) {
	p := &counting{err: errors.New("connection refused")}
	b, err := pubsub.New(p, pubsub.Config{Lanes: 1, Classify: backends.Unavailable})
	require.NoError(t, err)
	records := make([]backends.Record, 100)
	for i := range records {
		records[i] = backends.Record{MessageID: string(rune('a' + i)), Topic: "t"}
	}
	err = b.Publish(t.Context(), records)
	require.EqualValues(t, 1, p.calls.Load())
	var partial *backends.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, partial.Failures, 100)
	for i, f := range partial.Failures {
		require.Equal(t, backends.UnavailableFailure, backends.ClassOf(f.Err))
		if i > 0 {
			require.Equal(t, backends.NotSent, f.State)
		}
	}
}

// Classify gives classes. It cannot make a success of a failure.
func TestPublish_ClassifyCannotUndoAFailure(t *testing.T) {
	b, err := pubsub.New(&counting{err: errRefused}, pubsub.Config{Classify: func(error) error { return nil }})
	require.NoError(t, err)
	require.ErrorIs(t, b.Publish(t.Context(), one()), errRefused)

	b, err = pubsub.New(&counting{err: errRefused}, pubsub.Config{Classify: backends.Permanent})
	require.NoError(t, err)
	require.Equal(t, backends.PermanentFailure, backends.ClassOf(b.Publish(t.Context(), one())))
}
