package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// stranger is a handle beside the store's, set up as asked.
func stranger(t *testing.T, path, query string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?"+query)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// For two seconds somebody else holds the write lock, again and again. The store
// appends, leases, reads, settles and retries all the while, and nobody is told
// that the database is busy.
func TestBusy_AWaitIsNoError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	s := open(t, path, sqlite.Config{Retention: time.Hour})
	holder := stranger(t, path, "_txlock=immediate&_pragma=busy_timeout(5000)")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	fail := make(chan error, 8)
	wg.Go(func() {
		for range 2 {
			fail <- hold(ctx, holder, 2*time.Second)
		}
		cancel()
	})
	sent := make([]int, 4)
	for i := range sent {
		wg.Go(func() {
			for ctx.Err() == nil {
				sent[i]++
				fail <- appendOne(t.Context(), s, fmt.Sprint("agg", i), fmt.Sprint(sent[i]))
			}
		})
	}
	go func() { wg.Wait(); close(fail) }()

	w := newWorker(t, s)
	var got []string
	turn := func() {
		_, err := s.Lease(t.Context(), "worker", time.Minute)
		require.NoError(t, err)
		_, err = s.Purge(t.Context(), 10)
		require.NoError(t, err)
		got = append(got, w.drain()...)
	}
	for ok := true; ok; {
		select {
		case err, more := <-fail:
			require.NoError(t, err)
			ok = more
		default:
			turn()
		}
	}
	turn()
	for i, n := range sent {
		require.Positive(t, n)
		require.Equal(t, expected(fmt.Sprint("agg", i), n), only(got, fmt.Sprint("agg", i)))
	}
}

// hold keeps the write lock for a time.
func hold(ctx context.Context, db *sql.DB, d time.Duration) error {
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	<-time.After(d)
	return tx.Rollback()
}

func appendOne(ctx context.Context, s *sqlite.Store, aggregate, name string) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.Publisher(tx).Publish("t", msg(aggregate, name)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// expected is what drain says of n messages of an aggregate, named from 1.
func expected(aggregate string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s/%d %d", aggregate, i+1, i+1))
	}
	return out
}

func only(got []string, aggregate string) (out []string) {
	for _, g := range got {
		if strings.HasPrefix(g, aggregate+"/") {
			out = append(out, g)
		}
	}
	return out
}

// A transaction that began with a read cannot write once another has: no wait
// helps, and the error says what does. The store itself never begins like that.
func TestBusy_ADeferredTransactionIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	open(t, path, sqlite.Config{})
	deferred := stranger(t, path, "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	s, err := sqlite.New(deferred, sqlite.Config{})
	require.NoError(t, err)
	publish(t, s, msg("x", "1"))

	tx, err := deferred.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var n int
	require.NoError(t, tx.QueryRowContext(t.Context(), "select count(*) from outbox").Scan(&n))
	publish(t, s, msg("x", "2"))
	begin := time.Now()
	err = s.Publisher(tx).Publish("t", msg("x", "never"))
	require.ErrorContains(t, err, "_txlock=immediate")
	require.Less(t, time.Since(begin), 2*time.Second, "it waited for what cannot come")
	require.NoError(t, tx.Rollback())

	publish(t, s, msg("x", "3"))
	require.Equal(t, expected("x", 3), drain(t, s))
}

func TestBusy_TheWaitHasALimitAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	s := open(t, path, sqlite.Config{})
	publish(t, s, msg("x", "1"))
	holder := stranger(t, path, "_txlock=immediate")
	tx, err := holder.BeginTx(t.Context(), nil)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = s.Lease(ctx, "worker", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begin), 3*time.Second)
	_, err = s.Lease(t.Context(), "worker", time.Minute)
	require.ErrorContains(t, err, "held the write lock for longer than busy_timeout")
	b, err := s.Backlog(t.Context())
	require.NoError(t, err, "reading waits for nobody")
	require.EqualValues(t, 1, b.Ready)

	require.NoError(t, tx.Rollback())
	require.Equal(t, expected("x", 1), drain(t, s))
}

// Whenever a context ends, the one connection is left as it should be.
func TestCancel_AtAnyMomentLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	w := newWorker(t, s)
	var got []string
	committed := 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%100)*20*time.Microsecond)
		_, _ = s.Lease(ctx, "worker", time.Minute)
		_, _ = s.Reader().Read(ctx, w.lease, backends.Want{Limit: 10})
		cancel()

		committed++
		tx, err := s.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err, "a transaction was left open")
		require.NoError(t, s.Publisher(tx).Publish("t", msg("x", fmt.Sprint(committed))))
		require.NoError(t, tx.Commit())
		if i%50 == 0 {
			got = append(got, w.drain()...)
		}
	}
	require.Equal(t, expected("x", committed), append(got, w.drain()...))
}

// A message's context that ends during Publish must not cost the transaction.
func TestCancel_PublishIsAllOrNothing(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	_, err := s.DB().ExecContext(t.Context(), "create table orders (n integer)")
	require.NoError(t, err)
	whole := 0
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		tx, err := s.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "insert into orders values (1)")
		require.NoError(t, err)
		batch := []string{"a", "b", "c"}
		msgs := make([]*message.Message, 0, 30)
		for j := range 30 {
			m := msg(batch[j%3], "m")
			m.SetContext(ctx)
			msgs = append(msgs, m)
		}
		if err := s.Publisher(tx).Publish("t", msgs...); err == nil {
			whole++
		} else {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		cancel()
		require.NoError(t, tx.Commit(), "the transaction was lost")
	}
	require.Positive(t, whole)
	var orders int
	require.NoError(t, s.DB().QueryRowContext(t.Context(), "select count(*) from orders").Scan(&orders))
	require.Equal(t, 100, orders)
	require.Equal(t, 30*whole, len(drain(t, s))) // the list itself says little
}
