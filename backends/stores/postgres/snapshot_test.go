package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/internal/testenv"
)

func TestSnapshot_ComparesAsNumbers(t *testing.T) {
	require.True(t, older("99", "100"))
	require.False(t, older("100", "99"))
	require.False(t, older("100", "100"))
	require.False(t, older("100", firstXmax))
	xmax, xip := parseSnapshot("7:12:8,9")
	require.Equal(t, "12", xmax)
	require.Equal(t, []string{"8", "9"}, xip)
	xmax, xip = parseSnapshot("12:12:")
	require.Equal(t, "12", xmax)
	require.Empty(t, xip)
}

// bulk appends records without much ado.
func (w *randomWorld) bulk(ctx context.Context, c interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, n int,
) error {
	_, err := c.Exec(ctx, `insert into `+w.store.names.outbox+` (shard, message_id, topic, aggregate, payload, metadata)
select i % 64, 'm' || i, 't', 'a' || i % 5000, repeat('x', 500)::bytea, '{}' from generate_series(1, $1::int) i`, n)
	return err
}

// drainAll delivers until nothing is left.
func (x *worldReader) drainAll(t *testing.T, lease backends.Lease) (n int) {
	t.Helper()
	for {
		got, err := x.reader.Read(t.Context(), lease, backends.Want{Limit: 1000, MaxBytes: 4 << 20})
		require.NoError(t, err)
		if len(got) == 0 {
			return n
		}
		require.NoError(t, x.reader.Settle(t.Context(), lease, deliver(got)))
		n += len(got)
	}
}

// While an old snapshot keeps dead rows and a writer keeps its rows hidden,
// reading costs what it always costs.
func TestReader_HeldSnapshotAndOpenWriter(t *testing.T) {
	dead := 50_000
	if testenv.Long() {
		dead = 300_000
	}
	w := worldAt(t, ownDatabase(t), 0, On)
	old, err := w.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = old.Exec(t.Context(), "select 1 from "+w.store.names.outbox)
	require.NoError(t, err)
	lease, err := w.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	x := &worldReader{w: w, reader: w.store.Reader().(*reader)}
	for range 10 {
		require.NoError(t, w.bulk(t.Context(), w.pool, dead/10))
		require.Equal(t, dead/10, x.drainAll(t, lease))
	}
	hidden, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = hidden.Rollback(context.WithoutCancel(t.Context())) }()
	require.NoError(t, w.bulk(t.Context(), hidden, 20_000))
	_, err = w.pool.Exec(t.Context(), "create table "+w.schema+".later (n int)") // a later transaction completes
	require.NoError(t, err)
	probe := w.store.Watch()
	for range 2 {
		_, err = probe(t.Context())
		require.NoError(t, err)
		require.Zero(t, x.drainAll(t, lease))
	}
	want := backends.Want{Limit: 640}
	require.NoError(t, w.store.conns.with(t.Context(), func(c *pgx.Conn) error {
		r := x.reader
		r.scan.Begin(lease, nil, time.Now())
		bounded(t, "idle read", explain(t, c, planGuards, w.store.stmts.read, r.arguments(r.scan.Allot(lease, want), want)...), 0)
		bounded(t, "watch", explain(t, c, planGuards, w.store.stmts.watch, r.xmax, r.xip), 0)
		return nil
	}))
	start := time.Now()
	_, err = w.store.Backlog(t.Context())
	require.NoError(t, err)
	t.Logf("backlog: %v", time.Since(start))
	require.NoError(t, hidden.Commit(t.Context()))
	woken, err := probe(t.Context())
	require.NoError(t, err)
	require.True(t, woken)
	start = time.Now()
	require.Equal(t, 20_000, x.drainAll(t, lease))
	t.Logf("20000 rows in %v", time.Since(start))
}
