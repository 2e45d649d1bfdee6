package forwarder

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Causes of the limits on waiting, so that an error says which it was.
var (
	errHeartbeatTimeout = errors.New("heartbeat: the store did not answer in time")
	errReadTimeout      = errors.New("read: the store did not answer in time")
	errSettleTimeout    = errors.New("settle: the store did not answer in time")
	errPublishTimeout   = errors.New("publish: the broker did not answer in time")
	errPurgeTimeout     = errors.New("purge: the store did not answer in time")
	errReleaseTimeout   = errors.New("release: the store did not answer in time")
	errShutdownTimeout  = errors.New("shutdown: the time for an orderly stop is over")
)

// retryWait doubles from 50 ms to 5 s, with jitter: the pause after a store's
// failure.
type retryWait struct{ last time.Duration }

func (r *retryWait) next() time.Duration {
	r.last = min(max(2*r.last, 50*time.Millisecond), 5*time.Second)
	return jitter(r.last)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// logEvery is how often the same trouble is logged.
const logEvery = 10 * time.Second

// limitedLog logs each kind of trouble at most once per logEvery and then says
// how often it happened. It is safe for concurrent use.
type limitedLog struct {
	*slog.Logger

	mu   sync.Mutex
	seen map[string]*seen
}

type seen struct {
	at      time.Time
	skipped int
}

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{Logger: log, seen: map[string]*seen{}}
}

// warn logs a failure under a fixed text.
func (l *limitedLog) warn(ctx context.Context, text string, err error, args ...any) {
	l.limited(ctx, slog.LevelWarn, text, err, args)
}

// failed logs what needs a person.
func (l *limitedLog) failed(ctx context.Context, text string, err error, args ...any) {
	l.limited(ctx, slog.LevelError, text, err, args)
}

// debug logs what is the rule rather than news, every time.
func (l *limitedLog) debug(ctx context.Context, text string, err error, args ...any) {
	l.DebugContext(ctx, text, append(args, "error", brief(err))...)
}

func (l *limitedLog) limited(ctx context.Context, level slog.Level, text string, err error, args []any) {
	l.mu.Lock()
	s := l.seen[text]
	if s == nil {
		s = &seen{}
		l.seen[text] = s
	}
	now := time.Now()
	if !s.at.IsZero() && now.Sub(s.at) < logEvery {
		s.skipped++
		l.mu.Unlock()
		return
	}
	skipped := s.skipped
	s.at, s.skipped = now, 0
	l.mu.Unlock()
	args = append(args, "error", brief(err))
	if skipped > 0 {
		args = append(args, "repeated", skipped)
	}
	l.Log(ctx, level, text, args...)
}

// maxErrorText is how much of an error is logged, in bytes: some quote what they
// were given.
const maxErrorText = 512

func brief(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "")
	}
	return text
}
