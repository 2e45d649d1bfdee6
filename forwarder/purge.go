package forwarder

import (
	"context"
	"time"

	"github.com/outmill/outmill/backends"
)

// How purging is paced: a full step is followed by another after a short pause,
// so that a table that has grown is brought down without a long transaction.
const (
	purgeEvery = time.Minute
	purgePause = 100 * time.Millisecond
	purgeStep  = 1000
)

// purge removes delivered records that are past their retention, where the store
// keeps any. Of all forwarders the one that holds shard 0 does it.
func (f *Forwarder) purge(ctx context.Context, r *run) {
	p, ok := f.store.(backends.Purger)
	if !ok {
		return
	}
	for ctx.Err() == nil {
		pause := purgeEvery
		if r.keeper.holds(0) {
			call, cancel := context.WithTimeoutCause(r.calls, storeTimeout, errPurgeTimeout)
			n, err := p.Purge(call, purgeStep)
			cancel()
			f.hooks.purged(ctx, n, err)
			switch {
			case err != nil:
				f.log.warn(ctx, "delivered records could not be purged", err)
			case n >= purgeStep:
				pause = purgePause
			}
		}
		sleep(ctx, pause)
	}
}
