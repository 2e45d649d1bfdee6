// Package shop is what the examples share: clerks who place orders, books in
// which everything committed and everything received is kept, and a verdict.
package shop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Story is how much happens.
type Story struct {
	Orders, Clerks, Customers int

	Lose, Swap bool // spoil the books, to show that they would tell
}

// Order is what a clerk places.
type Order struct {
	ID        int
	Customer  string
	Cancelled bool // the customer changes their mind before the commit
}

// Clerks place orders side by side.
type Clerks struct{ done chan error }

// StartClerks lets them begin.
func StartClerks(s Story, place func(Order) error) *Clerks {
	next := atomic.Int64{}
	errs := make(chan error, s.Clerks)
	for range s.Clerks {
		go func() {
			for {
				id := int(next.Add(1))
				if id > s.Orders {
					errs <- nil
					return
				}
				o := Order{ID: id, Customer: fmt.Sprintf("customer-%d", id%s.Customers), Cancelled: id%10 == 7}
				if err := place(o); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	c := &Clerks{done: make(chan error, 1)}
	go func() {
		var all error
		for range s.Clerks {
			all = errors.Join(all, <-errs)
		}
		c.done <- all
	}()
	return c
}

// Wait waits until all orders are placed.
func (c *Clerks) Wait(ctx context.Context) error {
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Books hold what was committed and what was received, to be compared.
type Books struct {
	story Story

	mu       sync.Mutex
	orders   map[string]Order // committed, by message id
	gone     map[string]bool  // rolled back
	seen     map[string]bool
	repeats  int
	last     map[string]int64 // the last sequence received, by customer
	reversed int
}

// NewBooks opens them.
func NewBooks(s Story) *Books {
	return &Books{
		story:  s,
		orders: map[string]Order{}, gone: map[string]bool{}, seen: map[string]bool{}, last: map[string]int64{},
	}
}

// Committed notes an order and its message.
func (b *Books) Committed(id string, o Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders[id] = o
}

// RolledBack notes a message that must not arrive.
func (b *Books) RolledBack(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone[id] = true
}

// Received is the handler's work: it drops what it has had before.
func (b *Books) Received(msg *message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[msg.UUID] {
		b.repeats++
		return
	}
	sequence, _ := backends.Sequence(msg)
	customer := backends.Aggregate(msg)
	if b.story.Lose && len(b.seen) == 10 {
		b.story.Lose = false
		return
	}
	if b.story.Swap && sequence == 2 {
		b.story.Swap = false
		sequence = 0
	}
	b.seen[msg.UUID] = true
	if sequence <= b.last[customer] {
		b.reversed++
	}
	b.last[customer] = sequence
}

// Seen is how many different messages have been received.
func (b *Books) Seen() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

// Expected is how many have been committed.
func (b *Books) Expected() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.orders)
}

// Compare tells the verdict, and returns an error if it is a bad one.
func (b *Books) Compare(say *Teller, took time.Duration) error {
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
	say.Line("")
	say.figure("committed", len(b.orders), "")
	say.figure("rolled back", len(b.gone), "none of these may arrive")
	say.figure("delivered", len(b.seen), "")
	say.figure("repeats", b.repeats, "sent again after the kill, dropped by the handler")
	say.Line("")
	say.verdict("missing", missing)
	say.verdict("invented", invented)
	say.verdict("out of order", b.reversed)
	say.Line("")
	if missing+invented+b.reversed > 0 {
		return fmt.Errorf("the books do not agree: %d missing, %d invented, %d out of order", missing, invented, b.reversed)
	}
	say.Line("Every order arrived, in order, in %v.", took.Round(10*time.Millisecond))
	return nil
}
