package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// reader reads each shard onward from its cut. One transaction writes at a time
// and draws its ids while it does, so rows become visible in the order of their
// ids, with one exception: requeued rows keep their old ones. A counter tells of
// those.
type reader struct {
	store   *Store
	scan    *scan.State
	seen    int64 // nothing at or below it has become visible since, but by a requeue
	changes int64 // requeues
}

// Reader implements [backends.Outbox].
func (s *Store) Reader() backends.Reader { return &reader{store: s, scan: scan.New(), changes: -1} }

// Read implements [backends.Reader].
func (r *reader) Read(ctx context.Context, lease backends.Lease, want backends.Want) ([]backends.Record, error) {
	if want.Limit <= 0 {
		return nil, fmt.Errorf("sqlite: read: Limit is %d, allowed is 1 or more", want.Limit)
	}
	r.scan.Begin(lease, want.SkipTopics, time.Now())
	out, err := r.scan.Fill(ctx, lease, want, r.round)
	if err != nil {
		return nil, fmt.Errorf("sqlite: read: %w", mend(err))
	}
	return out, nil
}

func (r *reader) round(ctx context.Context, lease backends.Lease, want backends.Want) (scan.Result, error) {
	var asks []scan.Ask
	found := scan.NewFound(want.Limit, want.MaxBytes)
	// One state for all of it:
	//
	// 1. An aggregate is parked; its records 1 and 2 are dead letters, 3 has
	// just been appended. The counter is looked at.
	// 2. The aggregate is requeued: 1 and 2 are back, below the cut.
	// 3. The shard is read from its cut: 3 is no longer parked, and would go first.
	err := r.store.read(ctx, func(c *sql.Conn) error {
		if err := r.fresh(ctx, c); err != nil {
			return err
		}
		asks = r.scan.Allot(lease, want)
		for _, a := range asks {
			if a.Cut == scan.ToEnd {
				continue
			}
			if err := r.shard(ctx, c, a, want.SkipTopics, found); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return scan.Result{}, err
	}
	got := r.scan.Adopt(asks, found, time.Now())
	return got, r.setAside(ctx, got.Parked)
}

// fresh finds the shards that have something new. Ids that went back, in a table
// restored or a counter reset by hand, make everything new.
func (r *reader) fresh(ctx context.Context, c *sql.Conn) error {
	n := r.store.names
	var seen, changes int64
	err := c.QueryRowContext(ctx, `select coalesce((select seq from sqlite_sequence where name = ?), 0), (select n from `+n.changes+`)`,
		n.prefix+"outbox").Scan(&seen, &changes)
	if err != nil {
		return err
	}
	if changes != r.changes || seen < r.seen {
		r.scan.Forget()
		r.changes, r.seen = changes, seen
	} else if seen > r.seen {
		err = query(ctx, c, func(scan func(...any) error) error {
			var shard int
			var lo int64
			if err := scan(&shard, &lo); err != nil {
				return err
			}
			r.scan.Lower(shard, lo)
			return nil
		}, `select shard, min(id) - 1 from `+n.outbox+` where id > ? group by shard`, r.seen)
	}
	if err == nil {
		r.seen = seen
	}
	return err
}

// shard reads one shard onward.
func (r *reader) shard(ctx context.Context, c *sql.Conn, a scan.Ask, skipTopics []string, found *scan.Found) error {
	n := r.store.names
	text := `select o.id, o.message_id, o.topic, o.aggregate, o.sequence, o.payload, o.metadata, o.created_at, o.attempts,
    coalesce(o.next_attempt_at - ` + now + `, 0), ` + now + ` - o.created_at,
    o.aggregate is not null and exists (select 1 from ` + n.parked + ` p where p.aggregate = o.aggregate)
from ` + n.outbox + ` o where o.shard = ? and o.id > ?`
	args := []any{a.Shard, a.Cut}
	if len(skipTopics) > 0 {
		text += ` and o.topic not in (` + marks("?", len(skipTopics)) + `)`
		for _, t := range skipTopics {
			args = append(args, t)
		}
	}
	return query(ctx, c, func(scanRow func(...any) error) error {
		row := scan.Row{Record: backends.Record{Ref: backends.Ref{Shard: a.Shard}}}
		var aggregate sql.NullString
		var sequence sql.NullInt64
		var metadata sql.RawBytes
		var created, wait, age int64
		if err := scanRow(&row.ID, &row.MessageID, &row.Topic, &aggregate, &sequence, &row.Payload, &metadata, &created,
			&row.Attempts, &wait, &age, &row.Parked); err != nil {
			return err
		}
		row.Aggregate, row.Sequence = aggregate.String, sequence.Int64
		row.CreatedAt = time.UnixMicro(created).UTC()
		row.Age = max(0, time.Duration(age)*time.Microsecond)
		row.Wait = time.Duration(wait) * time.Microsecond
		if row.Payload == nil {
			row.Payload = []byte{}
		}
		var err error
		if row.Metadata, err = records.DecodeMetadata(metadata); err != nil {
			return fmt.Errorf("record %d of shard %d: %w", row.ID, row.Shard, err)
		}
		found.Add(row)
		return nil
	}, text+` order by o.id limit ?`, append(args, a.Limit)...)
}
