package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outmill/outmill/backends"
)

// randomWorld is an outbox with writers that do everything a writer may do. Each
// takes the row lock of an aggregate, draws the aggregate's next number under
// it, and publishes the number: order in the outbox must be that of the numbers.
type randomWorld struct {
	store      *Store
	pool       *pgxpool.Pool
	schema     string
	aggregates int
	budget     atomic.Int64 // messages still to be written
	slow       bool         // long transactions, too

	written   atomic.Int64
	delivered atomic.Int64

	mu        sync.Mutex
	committed map[string]int // the last number of each aggregate
	loose     int            // messages without an aggregate
	busy      sync.WaitGroup // prepared transactions on their way
	prepared  atomic.Int64
}

func (w *randomWorld) tables(ctx context.Context) error {
	_, err := w.pool.Exec(ctx, `create table `+w.schema+`.numbers (aggregate text primary key, n int not null default 0);
create table `+w.schema+`.noise (n int);
insert into `+w.schema+`.numbers (aggregate) select 'a' || i from generate_series(0, `+strconv.Itoa(w.aggregates-1)+`) i`)
	return err
}

// write writes until the budget is used up.
func (w *randomWorld) write(ctx context.Context, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 4711))
	for w.budget.Load() > 0 {
		// Comparing costs what waits. But who reads may have stopped for good.
		for waits := 0; waits < 100 && w.written.Load()-w.delivered.Load() > 3000; waits++ {
			nap(ctx, 2*time.Millisecond)
		}
		if err := w.transaction(ctx, r); err != nil {
			return fmt.Errorf("writer %d: %w", seed, err)
		}
	}
	return nil
}

// draft is what a transaction will have written if it commits.
type draft struct {
	numbers map[string]int
	loose   int
	n       int
}

func (w *randomWorld) transaction(ctx context.Context, r *rand.Rand) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	d := &draft{numbers: map[string]int{}}
	steps := 1 + r.IntN(4)
	if r.IntN(200) == 0 {
		steps = 70 // more savepoints than a snapshot lists
	}
	// Locks are taken in the order of names, so that there is no deadlock.
	from := r.IntN(w.aggregates)
	for i := range steps {
		if err := w.step(ctx, r, tx, d, min(from+i/8, w.aggregates-1), steps > 4 || r.IntN(4) == 0); err != nil {
			return err
		}
	}
	return w.end(ctx, r, tx, d)
}

// step publishes once, in a savepoint or not, which may be rolled back.
func (w *randomWorld) step(ctx context.Context, r *rand.Rand, tx pgx.Tx, d *draft, aggregate int, nested bool) error {
	if r.IntN(5) == 0 {
		nap(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
	}
	if !nested {
		return w.publish(ctx, r, tx, d, aggregate)
	}
	sp, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	inner := &draft{numbers: map[string]int{}}
	if err := w.publish(ctx, r, sp, inner, aggregate); err != nil {
		return err
	}
	if r.IntN(4) == 0 {
		return sp.Rollback(ctx)
	}
	if err := sp.Commit(ctx); err != nil {
		return err
	}
	for a, n := range inner.numbers {
		d.numbers[a] = n
	}
	d.loose += inner.loose
	d.n += inner.n
	return nil
}

func (w *randomWorld) publish(ctx context.Context, r *rand.Rand, tx pgx.Tx, d *draft, aggregate int) error {
	topic := []string{"t", "u"}[r.IntN(2)]
	if r.IntN(10) == 0 {
		d.loose++
		d.n++
		return w.store.Publisher(tx).Publish(topic, message.NewMessage(watermill.NewUUID(), []byte("loose")))
	}
	name := "a" + strconv.Itoa(aggregate)
	count := 1 + r.IntN(3)
	var last int
	if err := tx.QueryRow(ctx, `update `+w.schema+`.numbers set n = n + $2 where aggregate = $1 returning n`, name, count).Scan(&last); err != nil {
		return err
	}
	msgs := make([]*message.Message, count)
	for i := range msgs {
		msgs[i] = message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(last-count+1+i)))
		backends.SetAggregate(msgs[i], name)
	}
	d.numbers[name] = last
	d.n += count
	return w.store.Publisher(tx).Publish(topic, msgs...)
}

// end commits, rolls back, or commits in two phases, soon or late.
func (w *randomWorld) end(ctx context.Context, r *rand.Rand, tx pgx.Tx, d *draft) error {
	if w.slow && r.IntN(300) == 0 {
		nap(ctx, time.Duration(500+r.IntN(1000))*time.Millisecond)
	}
	switch r.IntN(20) {
	case 0, 1:
		return tx.Rollback(ctx)
	case 2:
		if w.prepared.Add(1) <= 10 {
			return w.twoPhases(ctx, r, tx, d)
		}
		w.prepared.Add(-1)
	case 3: // transaction ids that have nothing to do with the outbox
		if _, err := w.pool.Exec(ctx, `insert into `+w.schema+`.noise values (1)`); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.took(d)
	return nil
}

// took notes what was committed. Later numbers of an aggregate may be noted
// first, so the highest counts.
func (w *randomWorld) took(d *draft) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, n := range d.numbers {
		w.committed[a] = max(w.committed[a], n)
	}
	w.loose += d.loose
	w.budget.Add(-int64(d.n))
	w.written.Add(int64(d.n))
}

func (w *randomWorld) twoPhases(ctx context.Context, r *rand.Rand, tx pgx.Tx, d *draft) error {
	name := "'" + watermill.NewUUID() + "'"
	ctx = context.WithoutCancel(ctx) // cut off here, it would stay for ever
	// Not cut short by the end of the test: who would end what was prepared?
	if _, err := tx.Exec(context.WithoutCancel(ctx), "prepare transaction "+name); err != nil {
		return err
	}
	_ = tx.Rollback(ctx) // the session is in no transaction any more
	verb, wait := "commit prepared ", time.Duration(r.IntN(30))*time.Millisecond
	if r.IntN(5) == 0 {
		verb = "rollback prepared "
	}
	w.busy.Go(func() {
		defer w.prepared.Add(-1)
		nap(ctx, wait)
		if _, err := w.pool.Exec(ctx, verb+name); err == nil && verb[0] == 'c' {
			w.took(d)
		}
	})
	return nil
}

func nap(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
