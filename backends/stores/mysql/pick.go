package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/outmill/outmill/backends"
)

// picked names records in a statement. Only these rows are touched, by probes of
// the primary key in the order of the list: a scan, which optimizers prefer in a
// small table even to an index that is forced, would wait for rows that business
// transactions have open. A join by ref in a forced order leaves them no choice.
type picked struct{ from, where string }

// pick names records. Each is known by when it was made too: after a crash, ids
// that had not reached the disk are handed out again.
func (s *Store) pick(recs ...*backends.Record) picked {
	slices.SortFunc(recs, func(x, y *backends.Record) int {
		return cmp.Or(cmp.Compare(x.Shard, y.Shard), cmp.Compare(x.ID, y.ID))
	})
	recs = slices.CompactFunc(recs, func(x, y *backends.Record) bool { return x.Ref == y.Ref })
	list := make([]byte, 0, 32*len(recs))
	for i, r := range recs {
		if i > 0 {
			list = append(list, ',')
		}
		list = fmt.Appendf(list, "[%d,%d,%d]", r.Shard, r.ID, r.CreatedAt.UnixMicro())
	}
	return picked{
		from: " json_table(_utf8mb4'[" + string(list) + "]', '$[*]' columns (" +
			"shard tinyint unsigned path '$[0]', id bigint path '$[1]', made bigint path '$[2]')) k straight_join " +
			s.names.outbox + " o force index (primary) on o.shard = k.shard and o.id = k.id",
		where: " where timestampdiff(microsecond, '1970-01-01', o.created_at) = k.made",
	}
}

// remove is the statement that deletes what was picked.
func (p picked) remove() string { return "delete o from" + p.from + p.where }

// setAside moves records of parked aggregates to the dead letters, and says
// whether it moved any.
//
// 1. A reader meets a record of a parked aggregate.
// 2. Someone requeues the aggregate: its marker goes.
// 3. Moved now, the record would be stranded. So the marker is locked, and what
// has none any more, or one that is being taken away, stays.
func (r *reader) setAside(ctx context.Context, recs []*backends.Record) (moved bool, err error) {
	if len(recs) == 0 {
		return false, nil
	}
	s := r.store
	p := s.pick(recs...)
	err = s.write(ctx, func(c *sql.Conn) error {
		moved = false
		marked, err := strs(ctx, c, "select distinct o.aggregate from"+p.from+p.where+" and o.aggregate in (select aggregate from "+s.names.parked+") order by o.aggregate")
		if err != nil || len(marked) == 0 {
			return err
		}
		marked, err = strs(ctx, c, "select aggregate from "+s.names.parked+" where aggregate in ("+literals(marked)+") order by aggregate for update skip locked")
		if err != nil || len(marked) == 0 {
			return err
		}
		p := p
		p.where += " and o.aggregate in (" + literals(marked) + ")"
		moved = true
		return s.bury(ctx, c, p, nil, nil)
	})
	return moved && err == nil, err
}

// strs runs a query for names.
func strs(ctx context.Context, c *sql.Conn, text string) (out []string, err error) {
	err = query(ctx, c, func(scan func(...any) error) error {
		var name []byte
		err := scan(&name)
		out = append(out, string(name))
		return err
	}, text)
	return out, err
}
