package forwarder

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/outmill/outmill/backends"
)

// keeper holds a forwarder's lease: it sends the heartbeats, shares the shards
// out among the workers, and gives back what the store names as surplus once no
// worker has a record of it in hand.
type keeper struct {
	store   backends.Outbox
	owner   string
	cfg     Config
	hooks   watched
	log     *limitedLog
	workers int

	kick chan struct{} // asks for a heartbeat now; holds one request

	mu      sync.Mutex
	lease   backends.Lease
	worker  map[int]int  // shard → the worker it is given to
	leaving map[int]bool // shards to give back
	inHand  map[int]int  // shard → turns that have records of it
	changed chan struct{}
}

func newKeeper(store backends.Outbox, owner string, cfg Config, hooks watched, log *limitedLog) *keeper {
	return &keeper{
		store: store, owner: owner, cfg: cfg, hooks: hooks, log: log, workers: cfg.Workers,
		kick:    make(chan struct{}, 1),
		worker:  map[int]int{},
		leaving: map[int]bool{},
		inHand:  map[int]int{},
		changed: make(chan struct{}),
	}
}

// run sends heartbeats until ctx ends, under calls.
func (k *keeper) run(ctx, calls context.Context) {
	wait := retryWait{}
	for ctx.Err() == nil {
		next := k.cfg.heartbeat()
		if err := k.beat(ctx, calls); err != nil {
			k.log.warn(ctx, "the lease could not be renewed", err)
			next = wait.next()
		} else {
			wait = retryWait{}
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-k.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// beat sends one heartbeat. It is not cut short when ctx ends:
//
// 1. A heartbeat is on its way; the forwarder stops and cancels it.
// 2. The forwarder gives its shards back.
// 3. The database executes the heartbeat and leases them for a whole term.
func (k *keeper) beat(ctx, calls context.Context) error {
	call, cancel := context.WithTimeoutCause(calls, storeTimeout, errHeartbeatTimeout)
	defer cancel()
	lease, err := k.store.Lease(call, k.owner, k.cfg.term())
	k.hooks.leased(ctx, lease, err)
	if err != nil {
		return err
	}
	if gained, lost := k.adopt(lease); gained > 0 || lost > 0 {
		level := slog.LevelInfo
		if lost > 0 {
			level = slog.LevelWarn
		}
		k.log.Log(ctx, level, "the lease has changed", "gained", gained, "lost", lost, "shards", len(lease.Shards))
	}
	return k.giveBack(call)
}

// adopt takes a new lease over: workers keep the shards they have, new ones go
// to whoever has fewest. It returns how many are new, and how many of those held
// before are another's now, or have been meanwhile.
func (k *keeper) adopt(lease backends.Lease) (gained, lost int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	gained, lost = missing(k.lease, lease), missing(lease, k.lease)
	k.lease = lease
	clear(k.leaving)
	for _, shard := range lease.Surplus {
		k.leaving[shard] = true
	}
	load := make([]int, k.workers)
	for shard, w := range k.worker {
		if _, held := lease.Epoch(shard); !held {
			delete(k.worker, shard)
			continue
		}
		load[w]++
	}
	for _, s := range lease.Shards {
		if _, given := k.worker[s.Shard]; given {
			continue
		}
		least := 0
		for w, n := range load {
			if n < load[least] {
				least = w
			}
		}
		k.worker[s.Shard] = least
		load[least]++
	}
	k.broadcast()
	return gained, lost
}

// missing counts the shards of a lease that another does not hold under the same
// epoch.
func missing(from, of backends.Lease) (n int) {
	for _, s := range of.Shards {
		if epoch, held := from.Epoch(s.Shard); !held || epoch != s.Epoch {
			n++
		}
	}
	return n
}

// giveBack releases the leaving shards of which nothing is in hand.
//
// 1. A worker takes its lease, with shard 7, and reads.
// 2. A heartbeat names shard 7 as surplus. Given back now, another forwarder
// would send the same records at the same time.
// 3. The worker ends its turn and kicks. Only then is the shard released.
func (k *keeper) giveBack(ctx context.Context) error {
	k.mu.Lock()
	free := k.lease.Only(func(shard int) bool { return k.leaving[shard] && k.inHand[shard] == 0 })
	if len(free.Shards) > 0 {
		k.lease = k.lease.Only(func(shard int) bool { _, gone := free.Epoch(shard); return !gone })
		for _, s := range free.Shards {
			delete(k.leaving, s.Shard)
			delete(k.worker, s.Shard)
		}
	}
	k.mu.Unlock()
	if len(free.Shards) == 0 {
		return nil
	}
	return k.releaseShards(ctx, free)
}

// take returns a worker's part of the lease, without shards that are leaving,
// and counts it as in hand until done is called.
func (k *keeper) take(worker int) (lease backends.Lease, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lease = k.lease.Only(func(shard int) bool { return k.worker[shard] == worker && !k.leaving[shard] })
	k.hold(lease, 1)
	return lease, k.changed
}

// done ends what take began.
func (k *keeper) done(lease backends.Lease) {
	k.mu.Lock()
	k.hold(lease, -1)
	leaving := len(k.leaving) > 0
	k.mu.Unlock()
	if leaving {
		k.beatSoon()
	}
}

// keep counts a part of a lease that was taken once more, for records that stay
// in hand after the turn.
func (k *keeper) keep(lease backends.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold(lease, 1)
}

func (k *keeper) hold(lease backends.Lease, by int) {
	for _, s := range lease.Shards {
		if k.inHand[s.Shard] += by; k.inHand[s.Shard] == 0 {
			delete(k.inHand, s.Shard)
		}
	}
}

// holds reports whether a shard is held now.
func (k *keeper) holds(shard int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, held := k.lease.Epoch(shard)
	return held && time.Now().Before(k.lease.Deadline)
}

// current returns a lease with the deadline of the latest heartbeat; ok is false
// where a shard of it has been lost.
func (k *keeper) current(lease backends.Lease) (_ backends.Lease, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range lease.Shards {
		if epoch, held := k.lease.Epoch(s.Shard); !held || epoch != s.Epoch {
			return lease, false
		}
	}
	lease.Deadline = k.lease.Deadline
	return lease, true
}

func (k *keeper) beatSoon() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// renewed returns a lease again, cut down to the shards still held under the
// same epochs, with at least so much left. It waits for a heartbeat where that
// is needed. ok is false where ctx ended first.
func (k *keeper) renewed(ctx context.Context, lease backends.Lease, left time.Duration) (_ backends.Lease, ok bool) {
	for {
		k.mu.Lock()
		now, changed := k.lease, k.changed
		k.mu.Unlock()
		kept := lease.Only(func(shard int) bool {
			was, _ := lease.Epoch(shard)
			is, held := now.Epoch(shard)
			return held && is == was
		})
		kept.Deadline = now.Deadline
		if len(kept.Shards) == 0 || time.Until(now.Deadline) >= left {
			return kept, true
		}
		k.beatSoon()
		select {
		case <-ctx.Done():
			return kept, false
		case <-changed:
		}
	}
}

// broadcast wakes all who wait for a change. The caller holds mu.
func (k *keeper) broadcast() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// release gives everything back and takes the owner off the list of those alive.
func (k *keeper) release(ctx context.Context) error {
	k.mu.Lock()
	lease := k.lease
	k.lease = backends.Lease{Owner: k.owner}
	k.broadcast()
	k.mu.Unlock()
	if len(lease.Shards) > 0 {
		if err := k.releaseShards(ctx, lease); err != nil {
			return err
		}
	}
	return k.store.Release(ctx, backends.Lease{Owner: k.owner})
}

func (k *keeper) releaseShards(ctx context.Context, lease backends.Lease) error {
	err := k.store.Release(ctx, lease)
	if err == nil {
		k.log.InfoContext(ctx, "shards were given back", "shards", len(lease.Shards))
	}
	k.hooks.released(ctx, lease, err)
	return err
}
