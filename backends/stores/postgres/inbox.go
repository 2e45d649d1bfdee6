package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
)

var _ backends.Inboxes = (*Store)(nil)

// Inbox implements [backends.Inboxes]. A store of [New] or [Open] gives the
// handler a pgx.Tx, see [TxFromContext]; one of [NewSQL] a *sql.Tx, see
// [SQLTxFromContext], of whatever driver.
//
// A handler may use savepoints of its transaction. It must not end it: a pgx.Tx
// refuses, and where a *sql.Tx was ended all the same, the message counts as
// failed and is delivered again.
func (s *Store) Inbox(cfg backends.InboxConfig) (backends.Inbox, error) {
	if err := inboxes.CheckConfig("postgres", cfg); err != nil {
		return nil, err
	}
	source := &inboxSource{store: s, cfg: cfg}
	var reads inboxes.Querier
	switch c := s.conns.(type) {
	case poolConnector:
		source.begin, reads = source.beginPGX, pgxQuerier{c.pool, s.cfg.Pooler}
		source.pool = c.pool
	case sqlConnector:
		source.begin, reads = source.beginSQL, sqlQuerier{c.db}
		source.db = c.db
	}
	return &inboxes.Inbox{
		Source: source, Config: cfg,
		Lists: inboxes.SQLLists{SQL: inboxes.SQL{Dialect: s.inbox, Querier: reads, Consumer: cfg.Name}, Retention: cfg.Retention},
	}, nil
}

func inboxDialect(n names) *inboxes.Dialect {
	return &inboxes.Dialect{
		Tables: n.inbox, Numbered: true, Now: "clock_timestamp()",
		Ago: func(column string) string {
			return "(extract(epoch from clock_timestamp() - " + column + ") * 1000000)::int8"
		},
		Past: "statement_timestamp() - ?::int8 * interval '1 microsecond'",
		Lock: " for update", SkipLock: " for update skip locked",
		PurgeText: func(table, column string) string {
			return `delete from ` + table + ` where ctid = any (array(select ctid from ` + table +
				` where consumer = ? and ` + column + ` < {past} order by ` + column + ` limit ?::int8 for update skip locked))`
		},
	}
}

// settings of each inbox transaction, whatever the session's own are: a commit
// that a crash of the server takes back, after the broker was told that the
// message is handled, would lose it.
func (s *inboxSource) settings() []any {
	idle := fmt.Sprintf("%dms", s.cfg.IdleTimeout.Milliseconds())
	return []any{fmt.Sprintf("%dms", s.cfg.LockTimeout.Milliseconds()), idle}
}

// settingsText keeps a stronger setting of synchronous_commit.
const settingsText = `select set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on' when 'local' then 'on'
    else current_setting('synchronous_commit') end, true),
    set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', $2::text, true)`

// inboxAdvance is the usual case in one statement. The mark comes from the row
// that was moved, so the row's lock is taken first.
const (
	inboxAdvance = `with s as (
    update {sequences} set last = ?::int8, message_id = ?::text, moved_at = clock_timestamp()
    where consumer = ?::text and topic = ?::text and aggregate = ?::text and last = ?::int8 - 1 and parked = '' returning buffered),
m as (insert into {inbox} (consumer, topic, message_id, processed_at)
    select ?::text, ?::text, ?::text, clock_timestamp() from s on conflict do nothing returning 1)
select buffered, exists (select from m) from s`
	inboxAdvanceOnly = `with s as (
    update {sequences} set last = ?::int8, message_id = ?::text, moved_at = clock_timestamp()
    where consumer = ?::text and topic = ?::text and aggregate = ?::text and last = ?::int8 - 1 and parked = '' returning buffered)
select buffered, true from s`
)

var (
	inboxNewer     = strings.Replace(inboxAdvance, "last = ?::int8 - 1", "last between 1 and ?::int8 - 1", 1)
	inboxNewerOnly = strings.Replace(inboxAdvanceOnly, "last = ?::int8 - 1", "last between 1 and ?::int8 - 1", 1)
)

// inboxSQL is the part of an inbox's transaction that is alike for all drivers.
type inboxSQL struct{ inboxes.SQL }

func advanceText(consumer string, d *backends.Delivery, newer, mark bool) (text string, args []any) {
	text, args = inboxAdvanceOnly, []any{d.Sequence, d.MessageID, consumer, d.Topic, d.Aggregate, d.Sequence}
	if newer {
		text = inboxNewerOnly
	}
	if mark {
		text, args = inboxAdvance, append(args, consumer, d.Topic, d.MessageID)
		if newer {
			text = inboxNewer
		}
	}
	return text, args
}

// Advance implements [inboxes.Rows].
func (i inboxSQL) Advance(ctx context.Context, d *backends.Delivery, newer, mark bool) (step inboxes.Step, ok bool, err error) {
	text, args := advanceText(i.Consumer, d, newer, mark)
	err = i.Querier.Query(ctx, func(scan func(...any) error) error {
		ok = true
		return scan(&step.Buffered, &step.Fresh)
	}, i.Dialect.Text(text), args...)
	return step, ok && err == nil, err
}

// Check implements [inboxes.Source].
func (s *inboxSource) Check(ctx context.Context) error {
	set, err := s.store.migrations()
	if err != nil {
		return err
	}
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it has read only
	var have int64
	err = s.querier(tx).Query(ctx, func(scan func(...any) error) error { return scan(&have) },
		"select coalesce(max(version_id), 0) from "+s.store.names.migrations+" where is_applied")
	if err == nil {
		err = set.Compare(have)
	}
	if err != nil {
		return fmt.Errorf("postgres: inbox: %w", mend(err))
	}
	return nil
}

// Blameless implements [inboxes.Source].
func (s *inboxSource) Blameless(err error) bool {
	if pgconn.Timeout(err) && !errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e := short(err)
	if e == nil {
		return errors.Is(err, sql.ErrConnDone)
	}
	switch e.code {
	case "55P03", "57P01", "57P02", "57P03", "57P05": // lock not available, the server goes down or ends a session
		return true
	}
	return strings.HasPrefix(e.code, "40") || strings.HasPrefix(e.code, "08") || strings.HasPrefix(e.code, "53")
}

// limited gives what an inbox does by itself a limit.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, inboxTimeout)
}

// inboxTimeout limits a commit, which goes on when the delivery's context ends.
const inboxTimeout = 10 * time.Second
