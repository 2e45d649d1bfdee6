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

// peekStatement is all that a quiet server is asked: where its snapshot is that
// of the last look, no transaction has become visible.
func peekStatement(n names) string {
	return `select pg_current_snapshot()::text, coalesce((select token::text from ` + n.incarnation + `), '')`
}

// watch looks for transactions that have left rows.
type watch struct {
	store *Store
	began bool
	quiet bool // the last look found the snapshot as it was before
	token string
	snap  string
}

// Watch implements [backends.Waker].
func (s *Store) Watch() func(ctx context.Context) (bool, error) {
	w := &watch{store: s}
	return func(ctx context.Context) (bool, error) {
		fresh, err := w.look(ctx)
		if err != nil {
			return false, fmt.Errorf("postgres: look for new records: %w", mend(err))
		}
		return fresh, nil
	}
}

// look peeks while the server is quiet, and asks in full where it is not.
func (w *watch) look(ctx context.Context) (fresh bool, err error) {
	if w.quiet {
		snap, token, err := w.peek(ctx)
		if err != nil || snap == w.snap && token == w.token {
			return false, err
		}
	}
	xmax, xip := firstXmax, []string{}
	if w.began {
		xmax, xip = parseSnapshot(w.snap)
	}
	snap, token, fresh, err := w.ask(ctx, xmax, xip)
	if err != nil {
		return false, err
	}
	now, _ := parseSnapshot(snap)
	fresh = fresh || !w.began || token != w.token || older(now, xmax)
	w.quiet = snap == w.snap
	w.began, w.token, w.snap = true, token, snap
	return fresh, nil
}

func (w *watch) peek(ctx context.Context) (snap, token string, err error) {
	err = w.store.conns.with(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, w.store.stmts.peek).Scan(&snap, &token)
	})
	return snap, token, err
}

func (w *watch) ask(ctx context.Context, xmax string, xip []string) (snap, token string, fresh bool, err error) {
	err = w.store.conns.with(ctx, func(c *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue(planGuards)
		b.Queue(w.store.stmts.watch, xmax, xip).QueryRow(func(row pgx.Row) error { return row.Scan(&snap, &token, &fresh) })
		return c.SendBatch(ctx, b).Close()
	})
	return snap, token, fresh, err
}
