package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

var faults = map[string]fault{
	// Release deletes what is in hand: what Watermill's queue schema does on Close.
	"lost on close in mid-batch": {"Read/a restart", func(s *memory.Store) Store {
		var hand []backends.Record
		var reader backends.Reader
		box := &brokenBox{Store: s}
		box.reader = func(r backends.Reader) backends.Reader {
			reader = r
			return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
				got, err := r.Read(ctx, l, w)
				hand = append(hand, got...)
				return got, err
			}}
		}
		box.release = func(s *memory.Store, l backends.Lease) error {
			_ = reader.Settle(context.Background(), l, deliveries(hand))
			return s.Release(context.Background(), l)
		}
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return box }}
	}},
	"part settle settles all": {"Settle/exactly", withReader(settlesAll)},
	"lost on a partly failed batch": {"Read/what has no outcome", withReader(func(r backends.Reader) *brokenReader {
		return settlesAll(r)
	})},
	"a failed record is settled as delivered": {"Order/a retry", withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
			o = slices.Clone(o)
			for i := range o {
				o[i].Action = backends.Delivered
			}
			return r.Settle(ctx, l, o)
		}}
	})},
	"lease ignored": {"Lease/", func(s *memory.Store) Store {
		box := &leaseIgnored{brokenBox{Store: s}}
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return box }}
	}},
	"stale settle accepted": {"Lease/a stale owner", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, reader: func(r backends.Reader) backends.Reader {
			return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, _ backends.Lease, o []backends.Outcome) error {
				l, err := s.Lease(ctx, "b", limit) // whoever holds it
				return errors.Join(err, r.Settle(ctx, l, o))
			}}
		}}
	})},
	// A cursor over ids: what commits below it is never seen.
	"late commit skipped": {"Order/a late commit", withReader(func(r backends.Reader) *brokenReader {
		cursor := int64(0)
		return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			got, err := r.Read(ctx, l, w)
			got = slices.DeleteFunc(got, func(r backends.Record) bool { return r.ID <= cursor })
			for _, r := range got {
				cursor = max(cursor, r.ID)
			}
			return got, err
		}}
	})},
	// Unseen rows are waited for, but what follows them in the aggregate is not.
	"late commit overtaken": {"Order/a late commit", withReader(func(r backends.Reader) *brokenReader { return newestFirst(r) })},
	"order by transaction": {"Order/the one that has", func(s *memory.Store) Store {
		return &broken{Store: s, outbox: func(s *memory.Store) backends.Outbox {
			return &brokenBox{Store: s, reader: func(r backends.Reader) backends.Reader { return byTransaction(r) }}
		}, begin: numbered(s)}
	}},
	"retry overtaken": {"Order/a retry is not overtaken", withReader(func(r backends.Reader) *brokenReader {
		// The failed record is put aside by the reader, the rest goes on.
		failed := map[backends.Ref]bool{}
		return &brokenReader{
			Reader: r,
			settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
				o = slices.DeleteFunc(slices.Clone(o), func(o backends.Outcome) bool {
					failed[o.Record.Ref] = failed[o.Record.Ref] || o.Action == backends.Retry
					return o.Action == backends.Retry
				})
				return r.Settle(ctx, l, o)
			},
			read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
				got, err := r.Read(ctx, l, w)
				return slices.DeleteFunc(got, func(r backends.Record) bool { return failed[r.Ref] }), err
			},
		}
	})},
	"early retry": {"Order/a retry is not overtaken", withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
			o = slices.Clone(o)
			for i := range o {
				o[i].After = 0
			}
			return r.Settle(ctx, l, o)
		}}
	})},
	"park moves only one": {"Park/the aggregate", withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
			o = slices.Clone(o)
			for i := range o {
				if o[i].Action == backends.Park {
					o[i].Action = backends.Skip
				}
			}
			return r.Settle(ctx, l, o)
		}}
	})},
	"requeue loses order": {"Park/requeue", withBox(func(s *memory.Store) *brokenBox {
		return &brokenBox{Store: s, requeue: func(s *memory.Store, t backends.DeadTarget) (int, error) {
			dead, err := s.Dead(context.Background(), backends.DeadFilter{Aggregate: t.Aggregate})
			if err != nil {
				return 0, err
			}
			tx := s.Begin() // new ids: behind what has been appended since
			for _, d := range dead {
				m := message.NewMessage(d.MessageID, d.Payload)
				backends.SetAggregate(m, d.Aggregate)
				backends.SetSequence(m, d.Sequence)
				if err := s.Publisher(tx).Publish(d.Topic, m); err != nil {
					return 0, err
				}
			}
			n, err := s.Discard(context.Background(), t)
			return n, errors.Join(err, tx.Commit())
		}}
	})},
	"uncommitted visible": {"Append/visible after commit", func(s *memory.Store) Store {
		return &broken{Store: s, begin: func(s *memory.Store) Tx { return &autoCommit{s} }}
	}},
	"rollback leaves a gap": {"Append/rollback", func(s *memory.Store) Store {
		return &broken{Store: s, begin: func(s *memory.Store) Tx { return &gapTx{memoryTx{s.Begin(), s}} }}
	}},
	"metadata lost": {"Append/bytes", withReader(func(r backends.Reader) *brokenReader {
		return changes(r, func(r *backends.Record) { r.Metadata = nil })
	})},
	"payload through text": {"Append/bytes", withReader(func(r backends.Reader) *brokenReader {
		return changes(r, func(r *backends.Record) { r.Payload = []byte(string([]rune(string(r.Payload)))) })
	})},
	"limit ignored": {"Read/limits", withReader(func(r backends.Reader) *brokenReader {
		return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			w.Limit *= 10
			return r.Read(ctx, l, w)
		}}
	})},
	"skipped topic forgotten": {"Read/topics", withReader(func(r backends.Reader) *brokenReader {
		gone := map[string]bool{}
		return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			for _, t := range w.SkipTopics {
				gone[t] = true
			}
			got, err := r.Read(ctx, l, w)
			return slices.DeleteFunc(got, func(r backends.Record) bool { return gone[r.Topic] }), err
		}}
	})},
}

func settlesAll(r backends.Reader) *brokenReader {
	var hand []backends.Record
	return &brokenReader{
		Reader: r,
		read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
			got, err := r.Read(ctx, l, w)
			hand = got
			return got, err
		},
		settle: func(r backends.Reader, ctx context.Context, l backends.Lease, o []backends.Outcome) error {
			return errors.Join(r.Settle(ctx, l, o), r.Settle(ctx, l, deliveries(hand)))
		},
	}
}

func changes(r backends.Reader, change func(*backends.Record)) *brokenReader {
	return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
		got, err := r.Read(ctx, l, w)
		for i := range got {
			change(&got[i])
		}
		return got, err
	}}
}

func newestFirst(r backends.Reader) *brokenReader {
	return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
		got, err := r.Read(ctx, l, w)
		slices.Reverse(got)
		return got, err
	}}
}

// leaseIgnored gives everybody everything.
type leaseIgnored struct{ brokenBox }

func (l *leaseIgnored) Lease(ctx context.Context, owner string, ttl time.Duration) (backends.Lease, error) {
	got, err := l.Store.Lease(ctx, owner, ttl)
	got.Shards = nil
	for i := range backends.Shards {
		got.Shards = append(got.Shards, backends.ShardLease{Shard: i, Epoch: 1})
	}
	got.Surplus = nil
	return got, err
}

// autoCommit has no transactions.
type autoCommit struct{ store *memory.Store }

func (a *autoCommit) Publisher() message.Publisher { return autoPublisher{a.store} }
func (*autoCommit) Commit(context.Context) error   { return nil }
func (*autoCommit) Rollback(context.Context) error { return nil }

type autoPublisher struct{ store *memory.Store }

func (a autoPublisher) Publish(topic string, msgs ...*message.Message) error {
	tx := a.store.Begin()
	if err := a.store.Publisher(tx).Publish(topic, msgs...); err != nil {
		return err
	}
	return tx.Commit()
}

func (autoPublisher) Close() error { return nil }

// gapTx draws numbers that a rollback does not give back.
type gapTx struct{ memoryTx }

func (g *gapTx) Rollback(ctx context.Context) error {
	tx := g.store.Begin()
	err := errors.Join(g.memoryTx.Rollback(ctx), g.store.Publisher(tx).Publish("t", msg("x", "hidden")), tx.Commit())
	r := g.store.Reader()
	l, leaseErr := g.store.Lease(ctx, "thief", limit)
	got, readErr := r.Read(ctx, l, backends.Want{Limit: 1000})
	stolen := slices.DeleteFunc(got, func(r backends.Record) bool { return string(r.Payload) != "hidden" })
	err = errors.Join(err, leaseErr, readErr, r.Settle(ctx, l, deliveries(stolen)), g.store.Release(ctx, l))
	return errors.Join(err, g.store.Release(ctx, backends.Lease{Owner: "thief"}))
}

// numbered begins transactions that mark their messages with their own number.
func numbered(s *memory.Store) func(*memory.Store) Tx {
	n := 0
	return func(*memory.Store) Tx {
		n++
		return &numberedTx{memoryTx{s.Begin(), s}, fmt.Sprintf("%09d", n)}
	}
}

type numberedTx struct {
	memoryTx
	number string
}

func (t *numberedTx) Publisher() message.Publisher {
	return numberingPublisher{t.memoryTx.Publisher(), t.number}
}

type numberingPublisher struct {
	message.Publisher
	number string
}

func (p numberingPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		m.Metadata.Set("tx", p.number)
	}
	return p.Publisher.Publish(topic, msgs...)
}

// byTransaction sorts what it reads by the number of the transaction, as a
// reader does that orders by transaction id.
func byTransaction(r backends.Reader) *brokenReader {
	return &brokenReader{Reader: r, read: func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error) {
		got, err := r.Read(ctx, l, w)
		slices.SortStableFunc(got, func(a, b backends.Record) int { return strings.Compare(a.Metadata["tx"], b.Metadata["tx"]) })
		return got, err
	}}
}
