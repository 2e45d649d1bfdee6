package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

var inboxFaults = map[string]fault{
	"marks outside the handler's transaction": {"Inbox/a rollback", withInbox(func(i *brokenInbox) {
		i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
			tx, s, err := i.whole.Begin(ctx, d, order)
			if err != nil || s.Place != backends.Fresh {
				return tx, s, err
			}
			if err := tx.Commit(ctx); err != nil {
				return nil, s, err
			}
			return i.other(ctx), s, nil
		}
	})},
	"marks before handling": {"Inbox/nothing is marked", withInbox(func(i *brokenInbox) {
		i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
			tx, s, err := i.whole.Begin(ctx, d, order)
			if err != nil || s.Place != backends.Fresh {
				return tx, s, err
			}
			return i.other(ctx), s, tx.Commit(ctx)
		}
	})},
	"marks kept after a rollback": {"Inbox/a rollback", withInbox(func(i *brokenInbox) {
		i.rollback = func(ctx context.Context, t *brokenTx) error {
			if err := t.InboxTx.Rollback(ctx); err != nil {
				return err
			}
			tx, _, err := i.whole.Begin(ctx, t.delivery, t.order)
			if err != nil {
				return err
			}
			return tx.Commit(ctx)
		}
	})},
	"forgets what it handled": {"Inbox/once by id", withInbox(func(i *brokenInbox) {
		i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
			c := *d
			c.MessageID = watermill.NewUUID()
			return i.whole.Begin(ctx, &c, order)
		}
	})},
	"one key for all inboxes": {"Inbox/once by id", func(s *memory.Store) Store {
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return oneName{s} }}
	}},
	"no lock":                         {"Inbox/1: neighbours", withInbox(noLock)},
	"no lock for copies of a message": {"Inbox/1: two copies", withInbox(noLock)},
	"no lock at first sight":          {"Inbox/1: the first two", withInbox(noLock)},
	"advances past a gap": {"Inbox/one that comes early", withInbox(func(i *brokenInbox) {
		i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
			if order == inSequence {
				order = newer
			}
			return i.whole.Begin(ctx, d, order)
		}
	})},
	"releases a buffered message twice": {"Inbox/4:", withInbox(func(i *brokenInbox) {
		var mu sync.Mutex
		var last *backends.Delivery
		i.next = func(ctx context.Context, key backends.InboxKey, wait bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error) {
			mu.Lock()
			defer mu.Unlock()
			if last != nil {
				return i.other(ctx), last, backends.Standing{Place: backends.Fresh}, nil
			}
			tx, d, s, err := i.whole.Next(ctx, key, wait)
			last = d
			return tx, d, s, err
		}
	})},
	"loses the buffer on failure": {"Inbox/5:", withInbox(func(i *brokenInbox) {
		i.rollback = func(ctx context.Context, t *brokenTx) error {
			if t.taken {
				return t.Commit(ctx)
			}
			return t.InboxTx.Rollback(ctx)
		}
	})},
	"copy left behind": {"Inbox/3:", withInbox(func(i *brokenInbox) {
		i.backlog = func(b backends.InboxBacklog) backends.InboxBacklog {
			return backends.InboxBacklog{Buffered: b.Buffered + 1}
		}
	})},
	"lock and look in one statement": {"Inbox/2:", withInbox(func(i *brokenInbox) {
		i.next = func(ctx context.Context, key backends.InboxKey, wait bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error) {
			w, err := i.whole.Waiting(ctx, backends.InboxKey{}, 10)
			if err != nil || len(w) == 0 || w[0].Lowest != w[0].Last+1 {
				return nil, nil, backends.Standing{}, err
			}
			return i.whole.Next(ctx, key, wait)
		}
	})},
	"the buffer cuts metadata": {"Inbox/what was buffered", withInbox(func(i *brokenInbox) {
		i.next = func(ctx context.Context, key backends.InboxKey, wait bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error) {
			tx, d, s, err := i.whole.Next(ctx, key, wait)
			if d != nil {
				delete(d.Metadata, backends.SequenceKey)
			}
			return tx, d, s, err
		}
	})},
	"parks only one message": {"Inbox/9: attempts", withInbox(func(i *brokenInbox) {
		i.fail = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, f backends.InboxFailure) (backends.InboxFailed, error) {
			if order == inSequence {
				order = newer
			}
			return i.whole.Fail(ctx, d, order, f)
		}
	})},
	"counts in memory": {"Inbox/9: attempts", withInbox(func(i *brokenInbox) {
		n := 0
		i.fail = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, f backends.InboxFailure) (backends.InboxFailed, error) {
			if n++; n < f.Limit {
				return backends.InboxFailed{Attempts: n}, nil
			}
			return i.whole.Fail(ctx, d, order, f)
		}
	})},
	"counts what was handled meanwhile": {"Inbox/9: who failed", withInbox(func(i *brokenInbox) {
		i.fail = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, f backends.InboxFailure) (backends.InboxFailed, error) {
			got, err := i.whole.Fail(ctx, d, order, f)
			if got.Overtaken {
				got = backends.InboxFailed{Attempts: f.Limit, GivenUp: true}
			}
			return got, err
		}
	})},
	"parked unchecked": {"Inbox/10:", withInbox(func(i *brokenInbox) {
		i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
			tx, s, err := i.whole.Begin(ctx, d, order)
			if s.Place == backends.Parked {
				s.Place = backends.Fresh
			}
			return tx, s, err
		}
	})},
	"adopts at once": {"Inbox/8:", withInbox(func(i *brokenInbox) {
		i.resolve = func(ctx context.Context, key backends.InboxKey, how backends.GapAction, _ time.Duration) (bool, error) {
			return i.whole.Resolve(ctx, key, how, 0)
		}
	})},
	"gap unchecked": {"Inbox/12: who fails", withInbox(func(i *brokenInbox) {
		i.resolve = func(ctx context.Context, key backends.InboxKey, how backends.GapAction, _ time.Duration) (bool, error) {
			return i.whole.Resolve(ctx, key, how, 1)
		}
	})},
	"gap age unchecked": {"Inbox/12: a gap", withInbox(func(i *brokenInbox) {
		i.resolve = func(ctx context.Context, key backends.InboxKey, how backends.GapAction, _ time.Duration) (bool, error) {
			return i.whole.Resolve(ctx, key, how, 0)
		}
	})},
	"purges everything": {"Inbox/ids are purged", withInbox(func(i *brokenInbox) {
		i.purge = func(ctx context.Context, limit int) (int, error) { return i.whole.Purge(ctx, 100*limit) }
	})},
}

// noLock takes who comes second for who comes first.
func noLock(i *brokenInbox) {
	var mu sync.Mutex
	open := map[backends.InboxKey]bool{}
	i.begin = func(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
		mu.Lock()
		second := open[d.InboxKey]
		open[d.InboxKey] = true
		mu.Unlock()
		if second {
			return i.other(ctx), backends.Standing{Place: backends.Fresh}, nil
		}
		return i.whole.Begin(ctx, d, order)
	}
}

// wholeInbox is everything that the memory store's can do.
type wholeInbox interface {
	backends.Inbox
	backends.InboxUpkeep
	backends.InboxDeadLetters
}

// brokenInbox is an inbox whose parts can be replaced.
type brokenInbox struct {
	wholeInbox
	whole    wholeInbox
	begin    func(context.Context, *backends.Delivery, backends.InboxOrder) (backends.InboxTx, backends.Standing, error)
	next     func(context.Context, backends.InboxKey, bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error)
	fail     func(context.Context, *backends.Delivery, backends.InboxOrder, backends.InboxFailure) (backends.InboxFailed, error)
	resolve  func(context.Context, backends.InboxKey, backends.GapAction, time.Duration) (bool, error)
	purge    func(context.Context, int) (int, error)
	backlog  func(backends.InboxBacklog) backends.InboxBacklog
	rollback func(context.Context, *brokenTx) error
}

// other is a transaction that has nothing to do with any delivery.
func (i *brokenInbox) other(ctx context.Context) backends.InboxTx {
	tx, _, err := i.whole.Begin(ctx, loose(watermill.NewUUID()), anyOrder)
	if err != nil {
		panic(err)
	}
	return tx
}

func (i *brokenInbox) Begin(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
	begin := i.whole.Begin
	if i.begin != nil {
		begin = i.begin
	}
	tx, s, err := begin(ctx, d, order)
	if err != nil {
		return nil, s, err
	}
	return &brokenTx{InboxTx: tx, box: i, delivery: d, order: order}, s, nil
}

func (i *brokenInbox) Next(ctx context.Context, key backends.InboxKey, wait bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error) {
	next := i.whole.Next
	if i.next != nil {
		next = i.next
	}
	tx, d, s, err := next(ctx, key, wait)
	if err != nil || tx == nil {
		return nil, nil, s, err
	}
	return &brokenTx{InboxTx: tx, box: i, delivery: d, taken: true}, d, s, nil
}

func (i *brokenInbox) Fail(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, f backends.InboxFailure) (backends.InboxFailed, error) {
	if i.fail != nil {
		return i.fail(ctx, d, order, f)
	}
	return i.whole.Fail(ctx, d, order, f)
}

func (i *brokenInbox) Resolve(ctx context.Context, key backends.InboxKey, how backends.GapAction, minAge time.Duration) (bool, error) {
	if i.resolve != nil {
		return i.resolve(ctx, key, how, minAge)
	}
	return i.whole.Resolve(ctx, key, how, minAge)
}

func (i *brokenInbox) Purge(ctx context.Context, limit int) (int, error) {
	if i.purge != nil {
		return i.purge(ctx, limit)
	}
	return i.whole.Purge(ctx, limit)
}

func (i *brokenInbox) Backlog(ctx context.Context) (backends.InboxBacklog, error) {
	b, err := i.whole.Backlog(ctx)
	if i.backlog != nil {
		b = i.backlog(b)
	}
	return b, err
}

type brokenTx struct {
	backends.InboxTx
	box      *brokenInbox
	delivery *backends.Delivery
	order    backends.InboxOrder
	taken    bool // out of the buffer
}

func (t *brokenTx) Rollback(ctx context.Context) error {
	if t.box.rollback != nil {
		return t.box.rollback(ctx, t)
	}
	return t.InboxTx.Rollback(ctx)
}

// inboxBox is a memory store whose inboxes are broken. Those of one name are the
// same, as instances of a service have it.
type inboxBox struct {
	*memory.Store
	plant func(*brokenInbox)
	mu    sync.Mutex
	made  map[string]*brokenInbox
}

func (b *inboxBox) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	whole, err := b.Store.Inbox(cfg)
	if err != nil {
		return nil, err
	}
	key := cfg.Name + cfg.Retention.String()
	if b.made[key] == nil {
		w := whole.(wholeInbox)
		b.made[key] = &brokenInbox{wholeInbox: w, whole: w}
		b.plant(b.made[key])
	}
	return b.made[key], nil
}

func withInbox(plant func(*brokenInbox)) func(*memory.Store) Store {
	return func(s *memory.Store) Store {
		box := &inboxBox{Store: s, plant: plant, made: map[string]*brokenInbox{}}
		return &broken{Store: s, outbox: func(*memory.Store) backends.Outbox { return box }}
	}
}

// oneName keeps all inboxes as one.
type oneName struct{ *memory.Store }

func (o oneName) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	cfg.Name = "inbox"
	return o.Store.Inbox(cfg)
}
