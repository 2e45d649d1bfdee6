package forwarder

import (
	"sync"
	"time"
)

// How long a topic that cannot be reached is held back before it is probed. The
// longest wait bounds how long a broker that has come back is not noticed.
const (
	breakerMin = 200 * time.Millisecond
	breakerMax = 5 * time.Second
)

// breakers hold topics back that cannot be reached. A topic is closed (flows),
// open (held back until a time), or probing (one worker tries a batch).
type breakers struct {
	changed func(topic string, err error) // err nil: flows again

	mu     sync.Mutex
	topics map[string]*breaker // only those that do not flow
}

type breaker struct {
	wait    time.Duration
	until   time.Time
	probing bool
}

func newBreakers(changed func(string, error)) *breakers {
	return &breakers{changed: changed, topics: map[string]*breaker{}}
}

// held returns the topics to leave out now, and when the first of them may be
// probed. Topics whose time has come are claimed for the caller's next batch and
// returned in probes: the caller must report on each, or call abandon.
func (b *breakers) held(now time.Time) (held, probes []string, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic, t := range b.topics {
		if !t.probing && !now.Before(t.until) {
			t.probing = true
			probes = append(probes, topic)
			continue
		}
		held = append(held, topic)
		if !t.probing && (next.IsZero() || t.until.Before(next)) {
			next = t.until
		}
	}
	return held, probes, next
}

// abandon gives a probe back that was not made.
func (b *breakers) abandon(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[topic]; t != nil {
		t.probing = false
	}
}

// reached lets a topic flow again.
func (b *breakers) reached(topic string) {
	b.mu.Lock()
	_, was := b.topics[topic]
	delete(b.topics, topic)
	b.mu.Unlock()
	if was {
		b.changed(topic, nil)
	}
}

// trip holds a topic back, longer each time until it is reached.
//
// 1. Two workers publish to the topic, and the broker dies.
// 2. Both report. The second report must not double the wait, so only that of
// the prober, or the first, counts.
func (b *breakers) trip(topic string, now time.Time, prober bool, err error) {
	b.mu.Lock()
	t, was := b.topics[topic]
	switch {
	case !was:
		t = &breaker{wait: breakerMin}
		b.topics[topic] = t
	case prober:
		t.wait = min(2*t.wait, breakerMax)
		t.probing = false
	default:
		b.mu.Unlock()
		return
	}
	t.until = now.Add(jitter(t.wait))
	b.mu.Unlock()
	if !was {
		b.changed(topic, err)
	}
}
