package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// story is how much happens.
type story struct {
	orders, clerks, customers int

	lose, swap bool // spoil the books, to show that they would tell
}

type order struct {
	id        int
	customer  string
	cancelled bool
}

// clerks place orders side by side.
type clerks struct{ done chan error }

func startClerks(s story, place func(order) error) *clerks {
	next := atomic.Int64{}
	errs := make(chan error, s.clerks)
	for range s.clerks {
		go func() {
			for {
				id := int(next.Add(1))
				if id > s.orders {
					errs <- nil
					return
				}
				o := order{id: id, customer: fmt.Sprintf("customer-%d", id%s.customers), cancelled: id%10 == 7}
				if err := place(o); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	c := &clerks{done: make(chan error, 1)}
	go func() {
		var all error
		for range s.clerks {
			all = errors.Join(all, <-errs)
		}
		c.done <- all
	}()
	return c
}

func (c *clerks) wait(ctx context.Context) error {
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// books hold what was committed and what was received, to be compared.
type books struct {
	story          story
	settledByFirst *atomic.Int64

	mu       sync.Mutex
	orders   map[string]order // committed, by message id
	gone     map[string]bool  // rolled back
	seen     map[string]bool
	repeats  int
	last     map[string]int64 // the last sequence received, by customer
	reversed int
}

func newBooks(s story) *books {
	return &books{
		story: s, settledByFirst: new(atomic.Int64),
		orders: map[string]order{}, gone: map[string]bool{}, seen: map[string]bool{}, last: map[string]int64{},
	}
}

func (b *books) committed(id string, o order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders[id] = o
}

func (b *books) rolledBack(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone[id] = true
}

// received is the handler's work: it drops what it has had before.
func (b *books) received(msg *message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[msg.UUID] {
		b.repeats++
		return
	}
	sequence, _ := backends.Sequence(msg)
	customer := backends.Aggregate(msg)
	if b.story.lose && len(b.seen) == 10 {
		b.story.lose = false
		return
	}
	if b.story.swap && sequence == 2 {
		b.story.swap = false
		sequence = 0
	}
	b.seen[msg.UUID] = true
	if sequence <= b.last[customer] {
		b.reversed++
	}
	b.last[customer] = sequence
}

// compare tells the verdict, and returns an error if it is a bad one.
func (b *books) compare(say *teller, took time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing, invented := 0, 0
	for id := range b.orders {
		if !b.seen[id] {
			missing++
		}
	}
	for id := range b.seen {
		if _, ok := b.orders[id]; !ok {
			invented++
		}
	}
	say.line("")
	say.figure("committed", len(b.orders), "")
	say.figure("rolled back", len(b.gone), "none of these may arrive")
	say.figure("delivered", len(b.seen), "")
	say.figure("repeats", b.repeats, "sent again after the kill, dropped by the handler")
	say.line("")
	say.verdict("missing", missing)
	say.verdict("invented", invented)
	say.verdict("out of order", b.reversed)
	say.line("")
	if missing+invented+b.reversed > 0 {
		return fmt.Errorf("the books do not agree: %d missing, %d invented, %d out of order", missing, invented, b.reversed)
	}
	say.line("Every order arrived, in order, in %v.", took.Round(10*time.Millisecond))
	return nil
}

// dyingStore dies while a batch is being settled: after that it answers nothing,
// as a process that has been killed.
type dyingStore struct {
	*sqlite.Store
	kill    context.CancelFunc
	after   int
	settled *atomic.Int64
	dead    atomic.Bool
}

func (d *dyingStore) Reader() backends.Reader { return &dyingReader{d.Store.Reader(), d} }

func (d *dyingStore) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	if d.dead.Load() {
		return backends.Lease{}, errDied
	}
	return d.Store.Lease(ctx, owner, ttl)
}

// Release does nothing: the dead give nothing back, so the second forwarder has
// to wait for the end of the lease.
func (d *dyingStore) Release(context.Context, backends.Lease) error { return errDied }

type dyingReader struct {
	backends.Reader
	store *dyingStore
}

func (r *dyingReader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if r.store.dead.Load() {
		return nil, errDied
	}
	return r.Reader.Read(ctx, lease, want)
}

func (r *dyingReader) Settle(ctx context.Context, lease backends.Lease, outcomes []backends.Outcome) error {
	if r.store.settled.Load() >= int64(r.store.after) {
		r.store.dead.Store(true)
		r.store.kill()
	}
	if r.store.dead.Load() {
		return errDied
	}
	err := r.Reader.Settle(ctx, lease, outcomes)
	if err == nil {
		r.store.settled.Add(int64(len(outcomes)))
	}
	return err
}

// teller writes the story, in colour on a terminal.
type teller struct {
	out    io.Writer
	colour bool
}

func newTeller(out io.Writer) *teller {
	f, ok := out.(*os.File)
	if !ok {
		return &teller{out: out}
	}
	info, err := f.Stat()
	return &teller{out: out, colour: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""}
}

func (t *teller) line(format string, args ...any) { _, _ = fmt.Fprintf(t.out, format+"\n", args...) }

func (t *teller) figure(name string, n int, note string) {
	text := fmt.Sprintf("  %-13s %6d", name, n)
	if note != "" {
		text += "   " + note
	}
	t.line("%s", text)
}

func (t *teller) verdict(name string, n int) {
	mark, code := "ok", "32"
	if n > 0 {
		mark, code = "WRONG", "31"
	}
	if t.colour {
		mark = "\x1b[" + code + "m" + mark + "\x1b[0m"
	}
	t.line("  %-13s %6d   %s", name, n, strings.TrimSpace(mark))
}
