package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
)

// floors say from where each shard must be read. Usually that is its start: rows
// of transactions that commit late turn up below what has been read. Where an old
// read view keeps settled rows in the table, a scan from the start passes all of
// them. Then a floor is put in:
//
// 1. The highest id met in a shard is noted; every lower one has been drawn.
// 2. A second later a locking read of the rows between floor and note, which
// refuses to wait, finds out whether a transaction still has one of them open.
// 3. If not, the next read goes over them once more, with a newer snapshot. After
// that, nothing at or below the note can turn up, and it becomes the floor.
//
// The second is for a statement that has drawn its ids and not written its rows.
// Requeued rows lie lower: outbox_state tells of them. And each shard is read
// from its start once a minute, whatever its floor is.
type floors struct {
	safe  [backends.Shards]int64
	noted [backends.Shards]int64 // to be probed
	clear [backends.Shards]int64 // probed, and to be read once more
	met   [backends.Shards]int64 // the highest id seen
	owned [backends.Shards]int64 // epoch
	top   int64                  // of all shards

	slow    int // reads in a row
	active  bool
	pause   time.Duration // between note and probe
	notedAt time.Time
}

const (
	settleDown = time.Second

	// A scan is slow that takes longer than both.
	slowScan = 10 * time.Millisecond
	slowRow  = 100 * time.Microsecond
	slowRuns = 3
)

func (f *floors) reset() {
	*f = floors{met: f.met, owned: f.owned, top: f.top, active: f.active, pause: f.pause}
}

// own takes a lease over: a gained shard has no floor.
func (f *floors) own(lease backends.Lease) {
	var now [backends.Shards]int64
	for _, l := range lease.Shards {
		now[l.Shard] = l.Epoch
	}
	for shard, epoch := range now {
		if epoch != f.owned[shard] {
			f.safe[shard], f.noted[shard], f.clear[shard], f.met[shard] = 0, 0, 0, 0
		}
	}
	f.owned = now
}

func (f *floors) saw(ref backends.Ref) {
	f.met[ref.Shard] = max(f.met[ref.Shard], ref.ID)
	f.top = max(f.top, ref.ID)
}

// timed switches floors on where scans are slow. They stay on: with few settled
// rows about they cost one statement a second.
func (f *floors) timed(took time.Duration, rows int) {
	if took < slowScan || took < time.Duration(rows)*slowRow {
		f.slow = 0
		return
	}
	if f.slow++; f.slow >= slowRuns {
		f.active = true
	}
}

// advance follows a read that has gone over what was probed.
func (f *floors) advance() {
	for shard, id := range f.clear {
		f.safe[shard] = max(f.safe[shard], id)
	}
	f.clear = [backends.Shards]int64{}
}

// probe looks whether the noted rows are decided, and notes the next.
func (r *reader) probe(ctx context.Context, lease backends.Lease, now time.Time) error {
	f := &r.floors
	if !f.active || now.Sub(f.notedAt) < f.pause {
		return nil
	}
	var ranges []string
	for _, l := range lease.Shards {
		if from, to := f.safe[l.Shard], f.noted[l.Shard]; to > from {
			ranges = append(ranges, fmt.Sprintf("(shard = %d and id > %d and id <= %d)", l.Shard, from, to))
		}
	}
	open := false
	for part := range slices.Chunk(ranges, union) {
		var err error
		if open, err = r.undecided(ctx, part); err != nil {
			return err
		}
		if open {
			break
		}
	}
	if !open {
		f.clear = f.noted
	}
	f.noted, f.notedAt = f.met, now
	return nil
}

// undecided reports whether a transaction has a row of the ranges open. It locks
// rows that are there and no gap, and nothing when it returns.
func (r *reader) undecided(ctx context.Context, ranges []string) (bool, error) {
	conn, err := r.store.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, readCommitted); err != nil {
		return false, err
	}
	var n int64
	err = conn.QueryRowContext(ctx, "select count(*) from "+r.store.names.outbox+" force index (primary) where "+
		strings.Join(ranges, " or ")+" for update nowait").Scan(&n)
	if numbered(err, errNoWait, errLockTimeout) {
		return true, nil
	}
	return false, err
}
