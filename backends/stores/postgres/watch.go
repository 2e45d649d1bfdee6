package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// watchStatement asks whether a transaction that was not visible at the last
// look, and is now, has left a row. By the same argument as the read statement:
// such a row's transaction was at or above that snapshot's xmax, or in progress
// in it. It costs two probes of the index on xid, whatever the table holds.
func watchStatement(n names) string {
	return `with h as materialized (select pg_current_snapshot() as snap)
select snap::text, coalesce((select token::text from ` + n.incarnation + `), ''),
       exists (select from ` + n.outbox + ` where xid >= $1::text::xid8 and xid < pg_snapshot_xmax(snap))
    or exists (select from ` + n.outbox + ` where xid = any(array(
           select x from unnest($2::text[]::xid8[]) x where pg_visible_in_snapshot(x, snap))))
from h`
}

// Watch implements [backends.Waker].
func (s *Store) Watch() func(ctx context.Context) (bool, error) {
	first, token, xmax, xip := true, "", firstXmax, []string{}
	return func(ctx context.Context) (bool, error) {
		var snap, now string
		var fresh bool
		err := s.conns.with(ctx, func(c *pgx.Conn) error {
			b := &pgx.Batch{}
			b.Queue(planGuards)
			b.Queue(s.stmts.watch, xmax, xip).QueryRow(func(row pgx.Row) error { return row.Scan(&snap, &now, &fresh) })
			return c.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return false, fmt.Errorf("postgres: look for new records: %w", mend(err))
		}
		last := xmax
		xmax, xip = parseSnapshot(snap)
		fresh = fresh || first || now != token || older(xmax, last)
		first, token = false, now
		return fresh, nil
	}
}
