package postgres

import (
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// arrivals collects the rows of one answer.
type arrivals struct {
	now     time.Time // the database's
	token   string
	snap    string
	fresh   []backends.Ref // kind 1
	records []arrival

	counts  []int // records by shard
	bytes   int
	dropped bool // MaxBytes was reached, what follows was let go

	q question
}

type arrival struct {
	backends.Record
	wait   time.Duration // until its next attempt; 0: due
	parked bool
	drop   bool // beyond MaxBytes
}

func newArrivals(s *scan, q question) *arrivals {
	return &arrivals{q: q, counts: make([]int, backends.Shards), records: make([]arrival, 0, min(q.limit, 1024))}
}

// take reads the rows. Values are scanned in place: this is the hot path.
func (a *arrivals) take(rows pgx.Rows) error {
	var (
		kind                        int32
		shard                       int16
		id                          int64
		attempts                    int32
		messageID, topic, aggregate pgtype.Text
		sequence                    pgtype.Int8
		payload, metadata           []byte
		created                     pgtype.Timestamptz
		wait                        pgtype.Float8
		parked                      bool
	)
	to := []any{
		&kind, &shard, &id, &messageID, &topic, &aggregate, &sequence, &payload, &metadata, &created,
		&attempts, &wait, &parked,
	}
	for rows.Next() {
		payload, metadata = nil, nil
		if err := rows.Scan(to...); err != nil {
			return err
		}
		ref := backends.Ref{Shard: int(shard), ID: id}
		switch kind {
		case 0:
			a.token, a.snap, a.now = messageID.String, topic.String, created.Time
		case 1:
			a.fresh = append(a.fresh, ref)
		default:
			err := a.add(ref, payload, metadata, arrival{
				Record: backends.Record{
					Ref: ref, MessageID: messageID.String, Topic: topic.String, Aggregate: aggregate.String,
					Sequence: sequence.Int64, CreatedAt: created.Time.UTC(), Attempts: int(attempts),
				},
				wait: time.Duration(wait.Float64 * float64(time.Second)), parked: parked,
			})
			if err != nil {
				return err
			}
		}
	}
	return rows.Err()
}

// add keeps a row, or only its place once MaxBytes is reached.
func (a *arrivals) add(ref backends.Ref, payload, metadata []byte, row arrival) error {
	a.counts[ref.Shard]++
	if a.q.maxBytes > 0 && a.bytes >= a.q.maxBytes {
		row.drop = true
		a.dropped = true
	} else {
		md, err := records.DecodeMetadata(metadata)
		if err != nil {
			return fmt.Errorf("record %d of shard %d: %w", ref.ID, ref.Shard, err)
		}
		row.Payload, row.Metadata = payload, md
		a.bytes += len(payload)
	}
	a.records = append(a.records, row)
	return nil
}

// adopt takes an answer into memory.
func (r *reader) adopt(q question, a *arrivals) answer {
	s := r.scan
	s.token = a.token
	s.xmax, s.xip = parseSnapshot(a.snap)
	for _, f := range a.fresh {
		// Also for a shard that this question left out.
		s.cut[f.Shard] = min(s.cut[f.Shard], f.ID)
	}
	slices.SortFunc(a.records, func(x, y arrival) int {
		if x.Shard != y.Shard {
			return x.Shard - y.Shard
		}
		return int(min(1, max(-1, x.ID-y.ID)))
	})
	last := make([]int64, backends.Shards)
	for i := range a.records {
		last[a.records[i].Shard] = a.records[i].ID
	}
	var out answer
	for i, shard := range q.shards {
		from := s.cut[shard]
		if from == readToEnd {
			continue
		}
		s.scanned(int(shard), from)
		s.cut[shard] = readToEnd
		if a.counts[shard] >= int(q.limits[i]) {
			s.cut[shard] = last[shard]
		}
	}
	r.sort(a, &out)
	for shard := range s.owned {
		out.more = out.more || s.cut[shard] != readToEnd
	}
	return out
}

// sort says of each row what becomes of it: it is returned, must wait, or is of
// a parked aggregate.
func (r *reader) sort(a *arrivals, out *answer) {
	s := r.scan
	now := time.Now()
	out.records = make([]backends.Record, 0, len(a.records))
	kept := 0
	for i := range a.records {
		row := &a.records[i]
		_, owned := s.owned[row.Shard]
		_, inHand := s.hand[row.Ref] // returned by an earlier statement of this Read
		switch {
		case !owned, inHand:
		case row.drop:
			s.rewind(row.Ref)
		case row.parked:
			out.parked = append(out.parked, row.Ref)
			s.rewind(row.Ref) // until it has been set aside
		case s.held(row.Ref, row.Aggregate, now):
			s.holds[row.Shard].low = min(s.holds[row.Shard].low, row.ID-1)
		case row.wait > 0:
			// The wait was counted earlier, at the server: this is never early.
			s.hold(row.Ref, row.Aggregate, now.Add(row.wait))
		default:
			row.Age = max(0, a.now.Sub(row.CreatedAt))
			out.records = append(out.records, row.Record)
			kept += len(row.Payload)
		}
	}
	if n := len(out.records); n > 0 {
		s.perRow = max(1, kept/n, (s.perRow+kept/n)/2)
	}
}
