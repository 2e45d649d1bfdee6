package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Tx is what a publisher needs of a transaction: *sql.Tx and *sqlx.Tx have it,
// and so do the handles of most mappers.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Publisher returns a Watermill publisher that appends to the outbox in a
// transaction, which stays the caller's to commit or roll back. It is cheap:
// make one for each transaction. Close does nothing.
//
// Publish appends all messages of a call in their order, or none: after an error
// the transaction is as it was before the call and can go on. The context of the
// first message may keep it from beginning, and does not interrupt it. Calls for
// one transaction are serialised, whatever publisher they are made on.
//
// A *sql.DB or *sql.Conn, whose statements are transactions of their own, is
// refused by Publish.
func (s *Store) Publisher(tx Tx) message.Publisher { return publisher{store: s, tx: tx} }

// ContextPublisher returns a publisher that takes its transaction from the
// context of each call's first message: what [WithTx] put there. Without one, or
// with one bound to another store, Publish gives [backends.ErrNoTransaction]. It
// is safe for concurrent use, so one may serve a whole program.
func (s *Store) ContextPublisher() message.Publisher { return contextPublisher{s} }

type publisher struct {
	store *Store
	tx    Tx
}

// beginner is a handle that begins transactions and therefore is none.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Publish implements message.Publisher.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	rows, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
	if err != nil || len(rows) == 0 {
		return err
	}
	if tx, ok := p.tx.(*sql.Tx); p.tx == nil || ok && tx == nil {
		return fmt.Errorf("sqlite: the transaction is nil: %w", backends.ErrNoTransaction)
	}
	if _, ok := p.tx.(beginner); ok {
		return fmt.Errorf("sqlite: a %T is not a transaction: begin one and pass that: %w", p.tx, backends.ErrNoTransaction)
	}
	ctx := msgs[0].Context()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("sqlite: publish: %w", err)
	}
	defer p.store.inUse.lock(p.tx)()
	// SQLite rolls the whole transaction back when a statement of it is
	// interrupted, and what the caller did next would commit by itself.
	return mend(p.store.append(context.WithoutCancel(ctx), p.tx, rows))
}

// Close implements message.Publisher.
func (publisher) Close() error { return nil }

type contextPublisher struct{ store *Store }

// Publish implements message.Publisher.
func (p contextPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 || msgs[0] == nil {
		_, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
		return err
	}
	v, _ := msgs[0].Context().Value(txKey{}).(txValue)
	if v.tx == nil || v.store != nil && v.store != p.store {
		return fmt.Errorf("sqlite: put one there by sqlite.WithTx: %w", backends.ErrNoTransaction)
	}
	return p.store.Publisher(v.tx).Publish(topic, msgs...)
}

// Close implements message.Publisher.
func (contextPublisher) Close() error { return nil }

type txKey struct{}

type txValue struct {
	tx    Tx
	store *Store
}

// WithTx puts a transaction into a context for [Store.ContextPublisher].
func WithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx})
}

// WithTx is [WithTx] for programs with several stores: another store's
// ContextPublisher refuses the transaction.
func (s *Store) WithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, txKey{}, txValue{tx: tx, store: s})
}

// TxFromContext returns the transaction that WithTx put into a context.
func TxFromContext(ctx context.Context) (Tx, bool) {
	v, _ := ctx.Value(txKey{}).(txValue)
	return v.tx, v.tx != nil
}

// chunk keeps an insert below the 32,766 parameters that SQLite allows.
const chunk = 1000

// append writes rows. More than one statement is made one by a savepoint, which
// leaves the caller's transaction as it was.
func (s *Store) append(ctx context.Context, tx Tx, rows []records.Row) error {
	numbers := s.count(rows)
	if len(numbers) == 0 && len(rows) <= chunk {
		return s.insert(ctx, tx, rows)
	}
	if _, err := tx.ExecContext(ctx, "savepoint outbox_publish"); err != nil {
		return err
	}
	err := s.number(ctx, tx, rows, numbers)
	for part := range slices.Chunk(rows, chunk) {
		if err == nil {
			err = s.insert(ctx, tx, part)
		}
	}
	if err != nil {
		// The first error is the one to report.
		_, _ = tx.ExecContext(ctx, "rollback to outbox_publish")
		_, _ = tx.ExecContext(ctx, "release outbox_publish")
		return err
	}
	_, err = tx.ExecContext(ctx, "release outbox_publish")
	return err
}

// count says how many numbers each aggregate needs.
func (s *Store) count(rows []records.Row) map[string]int64 {
	if s.cfg.Sequences == Off {
		return nil
	}
	n := map[string]int64{}
	for _, r := range rows {
		if r.Aggregate != "" && r.Sequence == 0 {
			n[r.Aggregate]++
		}
	}
	return n
}

// number allots sequences, in place.
func (s *Store) number(ctx context.Context, tx Tx, rows []records.Row, n map[string]int64) error {
	next := make(map[string]int64, len(n))
	for aggregate, count := range n {
		var last int64
		err := tx.QueryRowContext(ctx, `insert into `+s.names.sequences+` (topic, aggregate, last) values (?, ?, ?)
on conflict (topic, aggregate) do update set last = last + excluded.last returning last`, rows[0].Topic, aggregate, count).Scan(&last)
		if err != nil {
			return err
		}
		next[aggregate] = last - count + 1
	}
	for i := range rows {
		if r := &rows[i]; r.Aggregate != "" && r.Sequence == 0 && n[r.Aggregate] > 0 {
			r.Sequence = next[r.Aggregate]
			next[r.Aggregate]++
		}
	}
	return nil
}

const rowMarks = "(?, ?, ?, nullif(?, ''), nullif(?, 0), ?, ?, " + now + ")"

// now is the database's clock in microseconds.
const now = "cast(unixepoch('subsec') * 1000000 as integer)"

func (s *Store) insert(ctx context.Context, tx Tx, rows []records.Row) error {
	args := make([]any, 0, 7*len(rows))
	for _, r := range rows {
		args = append(args, r.Shard, r.MessageID, r.Topic, r.Aggregate, r.Sequence, r.Payload, string(r.Metadata))
	}
	_, err := tx.ExecContext(ctx, `insert into `+s.names.outbox+` (shard, message_id, topic, aggregate, sequence, payload, metadata, created_at)
values `+rowMarks+strings.Repeat(", "+rowMarks, len(rows)-1), args...)
	return err
}
