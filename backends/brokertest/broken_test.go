package brokertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/outmill/outmill/backends"
)

func init() { limit = 3 * time.Second }

// A sound broker passes the whole suite.
func TestSuite_AcceptsASoundBroker(t *testing.T) {
	Run(t, func(testing.TB) Harness { return newBroker("") })
}

// The suite is tested too: a broker with one fault fails the cases named.
func TestSuite_RejectsPlantedFaults(t *testing.T) {
	for fault, caught := range map[string]string{
		"order lost after a failure":    "Refuse/exactly",
		"pipelined past a failure":      "Refuse/a retry",
		"retry overtaken":               "Refuse/a retry",
		"unroutable reported as sent":   "Refuse/a missing topic",
		"missing topic stops others":    "Refuse/a missing topic",
		"lost on a partly failed batch": "Refuse/exactly",
		"wrong index":                   "Refuse/exactly",
		"panics on an odd record":       "Refuse/odd",
		"odd record stops others":       "Refuse/odd",
		"lost behind an odd record":     "Refuse/odd",
		"neighbour blamed":              "Refuse/exactly",
		"class lost":                    "Refuse/a missing topic",
		"slice kept":                    "Keep/",
		"deadline ignored":              "Limit/a hanging",
		"hang reported as sent":         "Limit/a hanging",
		"outage reported as sent":       "Outage/",
		"outage is no outage":           "Outage/",
		"never recovers":                "Outage/",
		"headers lost":                  "Accept/bytes",
		"reversed":                      "Accept/order",
		"open after close":              "Close/twice",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases {
				if strings.HasPrefix(c.name, caught) && try(t, c, newBroker(fault)) != "" {
					return
				}
			}
			t.Fatalf("no case of %q caught it", caught)
		})
	}
}

func try(t *testing.T, c testCase, h Harness) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	r := &recorder{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(&fixture{T: r, Harness: h})
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

type recorder struct {
	ctx     context.Context
	mu      sync.Mutex
	failure string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure += fmt.Sprintf(format, args...)
}
func (r *recorder) FailNow()                 { runtime.Goexit() }
func (r *recorder) Helper()                  {}
func (r *recorder) Logf(string, ...any)      {}
func (r *recorder) Context() context.Context { return r.ctx }

// memoryBroker keeps what it accepts. fault names the one thing it does wrong.
type memoryBroker struct {
	fault string

	mu     sync.Mutex
	topics map[string][]backends.Record
	kept   []backends.Record // "slice kept": not copied yet
	late   []backends.Record // "retry overtaken": sent at the next call
	closed bool
	down   bool
	was    bool // has been down
	frozen chan struct{}
}

func newBroker(fault string) *memoryBroker {
	b := &memoryBroker{fault: fault, topics: map[string][]backends.Record{}, frozen: make(chan struct{})}
	close(b.frozen)
	return b
}

func (b *memoryBroker) Broker() backends.Broker { return b }

func (b *memoryBroker) Topic() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	topic := watermill.NewShortUUID()
	b.topics[topic] = nil
	return topic
}

func (b *memoryBroker) MissingTopic() string { return "missing" }

func (b *memoryBroker) Refused(r backends.Record) backends.Record {
	r.Metadata = map[string]string{"refuse": "yes"}
	return r
}

func (b *memoryBroker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}
func (b *memoryBroker) Down()   { b.set(func() { b.down, b.was = true, true }) }
func (b *memoryBroker) Up()     { b.set(func() { b.down = b.fault == "never recovers" }) }
func (b *memoryBroker) Freeze() { b.set(func() { b.frozen = make(chan struct{}) }) }
func (b *memoryBroker) Thaw()   { b.set(func() { close(b.frozen) }) }

func (b *memoryBroker) Close(context.Context) error {
	b.set(func() { b.closed = b.fault != "open after close" })
	return nil
}

func (b *memoryBroker) Read(ctx context.Context, topic string, n int) ([]Message, error) {
	for {
		b.mu.Lock()
		rows := slices.Clone(b.topics[topic])
		for _, r := range b.kept {
			if r.Topic == topic {
				rows = append(rows, r)
			}
		}
		b.mu.Unlock()
		if len(rows) >= n {
			out := make([]Message, len(rows))
			for i, r := range rows {
				out[i] = Message{ID: r.MessageID, Payload: r.Payload, Headers: map[string]string{}}
				for k, v := range r.Headers() {
					if b.fault != "headers lost" {
						out[i].Headers[k] = v
					}
				}
			}
			return out, nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d came", len(rows), n)
		}
	}
}

func (b *memoryBroker) Publish(ctx context.Context, records []backends.Record) error {
	b.mu.Lock()
	frozen := b.frozen
	b.mu.Unlock()
	select {
	case <-frozen:
	case <-ctx.Done():
		switch b.fault {
		case "deadline ignored":
			<-time.After(2 * limit)
		case "hang reported as sent":
			return nil
		}
		return backends.Unavailable(context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return backends.ErrClosed
	case b.down && b.fault == "outage reported as sent":
		return nil
	case b.down && b.fault == "outage is no outage":
		return errors.New("down")
	case b.down:
		return backends.Unavailable(errors.New("down"))
	}
	return b.accept(records)
}

var errRefused = backends.Permanent(errors.New("refused"))

func (b *memoryBroker) accept(records []backends.Record) error {
	out := &backends.PartialError{}
	stopped := map[string]bool{}
	fail := func(i int, state backends.State, err error) {
		out.Failures = append(out.Failures, backends.Failure{Index: i, State: state, Err: err})
		if records[i].Aggregate != "" {
			stopped[records[i].Aggregate] = true
		}
	}
	if b.fault == "reversed" {
		records = slices.Clone(records)
		slices.Reverse(records)
	}
	for i, r := range records {
		_, there := b.topics[r.Topic]
		switch {
		case r.Metadata == nil && b.fault == "panics on an odd record":
			panic("assignment to entry in nil map")
		case r.Topic == "" && b.fault == "odd record stops others":
			return errRefused
		case b.fault == "lost behind an odd record" && i > 0 && records[i-1].MessageID == "":
		case stopped[r.Aggregate] && b.fault != "order lost after a failure" && b.fault != "pipelined past a failure":
			fail(i, backends.NotSent, errors.New("behind a failure"))
		case !there && b.fault == "unroutable reported as sent":
		case !there && b.fault == "missing topic stops others":
			return errRefused
		case !there && b.fault == "class lost":
			fail(i, backends.Rejected, errors.New("no such topic"))
		case !there:
			fail(i, backends.Rejected, errRefused)
		case r.Metadata["refuse"] != "" && b.fault == "retry overtaken":
			delete(r.Metadata, "refuse")
			b.late = append(b.late, r) // the adapter itself tries again, later
		case r.Metadata["refuse"] != "" && b.fault == "lost on a partly failed batch":
		case r.Metadata["refuse"] != "" && b.fault == "wrong index":
			fail(i-1, backends.Rejected, errRefused)
		case r.Metadata["refuse"] != "" && b.fault == "neighbour blamed":
			return errRefused
		case r.Metadata["refuse"] != "":
			fail(i, backends.Rejected, errRefused)
		default:
			b.keep(r)
		}
	}
	for _, r := range b.late {
		b.keep(r)
	}
	b.late = nil
	if len(out.Failures) > 0 {
		return out
	}
	return nil
}

func (b *memoryBroker) keep(r backends.Record) {
	if b.fault == "slice kept" {
		b.kept = append(b.kept, r)
		return
	}
	r.Payload = slices.Clone(r.Payload)
	md := make(map[string]string, len(r.Metadata))
	for k, v := range r.Metadata {
		md[k] = v
	}
	r.Metadata = md
	b.topics[r.Topic] = append(b.topics[r.Topic], r)
}
