package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// lockTimeout is how long a transaction waits for another that holds a sequence.
const lockTimeout = 10 * time.Second

var errLockTimeout = errors.New("memory: another transaction has held the aggregate's sequence for too long")

type sequenceKey struct{ topic, aggregate string }

// sequence is a counter; lock holds one token and is held by a transaction.
type sequence struct {
	lock chan struct{}
	last int64 // committed
}

// Tx is a transaction. It may be used by several goroutines.
type Tx struct {
	store *Store

	mu    sync.Mutex
	done  bool
	rows  []*row
	drawn map[sequenceKey]int64 // the last number drawn from each sequence held

	guarded bool // an inbox ends it
}

// Begin begins a transaction.
func (s *Store) Begin() *Tx { return &Tx{store: s, drawn: map[sequenceKey]int64{}} }

// Publisher returns a publisher that appends in a transaction. Close does
// nothing.
func (s *Store) Publisher(tx *Tx) message.Publisher { return publisher{tx} }

type publisher struct{ tx *Tx }

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	return p.tx.publish(topic, msgs)
}

func (publisher) Close() error { return nil }

// ContextPublisher returns a publisher that takes the transaction from the
// context of each call's first message, see [WithTx].
func (s *Store) ContextPublisher() message.Publisher { return contextPublisher{s} }

type contextPublisher struct{ store *Store }

func (p contextPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 || msgs[0] == nil {
		_, err := records.Prepare(topic, msgs, p.store.cfg.MaxPayload)
		return err
	}
	tx, ok := TxFromContext(msgs[0].Context())
	if !ok || tx.store != p.store {
		return fmt.Errorf("memory: %w", backends.ErrNoTransaction)
	}
	return tx.publish(topic, msgs)
}

func (contextPublisher) Close() error { return nil }

type txKey struct{}

// WithTx puts a transaction into a context.
func WithTx(ctx context.Context, tx *Tx) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// TxFromContext returns the transaction that WithTx put into a context.
func TxFromContext(ctx context.Context) (*Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*Tx)
	return tx, ok && tx != nil
}

func (tx *Tx) publish(topic string, msgs []*message.Message) error {
	prepared, err := records.Prepare(topic, msgs, tx.store.cfg.MaxPayload)
	if err != nil || len(prepared) == 0 {
		return err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.done {
		return fmt.Errorf("memory: %w", backends.ErrTransactionDone)
	}
	if err := tx.lock(msgs[0].Context(), topic, prepared); err != nil {
		return err
	}
	for _, p := range prepared {
		md, err := records.DecodeMetadata(p.Metadata)
		if err != nil {
			return err
		}
		r := &row{Record: backends.Record{
			Ref: backends.Ref{Shard: p.Shard}, MessageID: p.MessageID, Topic: topic, Aggregate: p.Aggregate,
			Sequence: p.Sequence, Payload: bytes.Clone(p.Payload), Metadata: md, CreatedAt: time.Now().UTC(),
		}}
		if tx.numbered(p) {
			key := sequenceKey{topic, p.Aggregate}
			tx.drawn[key]++
			r.Sequence = tx.drawn[key]
		}
		r.ID = tx.store.newID()
		tx.rows = append(tx.rows, r)
	}
	return nil
}

func (tx *Tx) numbered(p records.Row) bool {
	return !tx.store.cfg.SequencesOff && p.Aggregate != "" && p.Sequence == 0
}

func (s *Store) newID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	return s.nextID
}

// lock takes the sequences that rows draw from, in the order of their names, so
// that two calls cannot wait for each other.
func (tx *Tx) lock(ctx context.Context, topic string, rows []records.Row) error {
	var names []string
	for _, r := range rows {
		if _, held := tx.drawn[sequenceKey{topic, r.Aggregate}]; tx.numbered(r) && !held {
			names = append(names, r.Aggregate)
		}
	}
	slices.Sort(names)
	ctx, cancel := context.WithTimeoutCause(ctx, lockTimeout, errLockTimeout)
	defer cancel()
	for _, name := range slices.Compact(names) {
		key := sequenceKey{topic, name}
		seq := tx.store.sequence(key)
		select {
		case <-seq.lock:
			tx.drawn[key] = seq.last
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *Store) sequence(key sequenceKey) *sequence {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq := s.sequences[key]
	if seq == nil {
		seq = &sequence{lock: make(chan struct{}, 1)}
		seq.lock <- struct{}{}
		s.sequences[key] = seq
	}
	return seq
}

// Commit makes what was appended visible.
func (tx *Tx) Commit() error { return tx.ended(true) }

// Rollback drops what was appended. After the end of the transaction it gives
// [backends.ErrTransactionDone] and does nothing.
func (tx *Tx) Rollback() error { return tx.ended(false) }

func (tx *Tx) ended(keep bool) error {
	if tx.guarded {
		return fmt.Errorf("memory: return nil to commit it and an error to roll it back: %w", backends.ErrInboxTransaction)
	}
	return tx.end(keep)
}

func (tx *Tx) end(keep bool) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.done {
		return fmt.Errorf("memory: %w", backends.ErrTransactionDone)
	}
	tx.done = true
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if keep {
		for _, r := range tx.rows {
			s.insert(r)
		}
	}
	for key, last := range tx.drawn {
		seq := s.sequences[key]
		if keep {
			seq.last = last
		}
		seq.lock <- struct{}{}
	}
	return nil
}
