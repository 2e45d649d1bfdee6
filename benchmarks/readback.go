package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const idPrefix = "00000000-0000-4000-8000-"

// idOf is the id of the message of a number: a UUID, so that every party takes
// it, from which the number can be read back.
func idOf(n int) string { return fmt.Sprintf(idPrefix+"%012d", n) }

func numberOf(id string) (int, bool) {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil
}

// readBack reads a whole topic and compares it with the n messages that were
// committed: none missing, none invented, first occurrences in order within an
// aggregate. It returns how many came more than once, which is allowed.
func (b *bench) readBack(ctx context.Context, topic string, n int) (repeats int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	left := 0
	ends.Each(func(o kadm.ListedOffset) { left += int(o.Offset) })
	c, err := kgo.NewClient(kgo.SeedBrokers(b.seeds...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	seen := newArrived(n)
	for left > 0 && err == nil {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("read back: %d records of the topic were not read in time", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			if err == nil {
				err = seen.take(r)
			}
		})
	}
	if err == nil && seen.count < n {
		err = fmt.Errorf("read back: %d of %d messages are missing", n-seen.count, n)
	}
	return seen.repeats, err
}

// arrived is what has been seen of a topic.
type arrived struct {
	seen           []bool
	last           [aggregates]int // number of each aggregate's latest message, from 1
	count, repeats int
}

func newArrived(n int) *arrived { return &arrived{seen: make([]bool, n)} }

func (a *arrived) take(r *kgo.Record) error {
	id := ""
	for _, h := range r.Headers {
		if h.Key == "_watermill_message_uuid" {
			id = string(h.Value)
		}
	}
	n, ok := numberOf(id)
	if !ok || n < 0 || n >= len(a.seen) {
		return fmt.Errorf("read back: nobody sent the message %q", id)
	}
	if string(r.Key) != aggregateOf(n) {
		return fmt.Errorf("read back: message %d has the key %q, not %q", n, r.Key, aggregateOf(n))
	}
	if len(r.Value) != len(payload) {
		return fmt.Errorf("read back: message %d has %d bytes, not %d", n, len(r.Value), len(payload))
	}
	if a.seen[n] {
		a.repeats++
		return nil
	}
	a.seen[n] = true
	a.count++
	if last := &a.last[n%aggregates]; n < *last {
		return fmt.Errorf("read back: %s: message %d came after %d", aggregateOf(n), n, *last-1)
	} else {
		*last = n + 1
	}
	return nil
}
