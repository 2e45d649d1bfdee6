package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// node is a part of a plan as EXPLAIN shows it.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []node  `json:"Plans"`
	Rows     float64 `json:"Actual Rows"`
}

func (n node) each(visit func(node)) {
	visit(n)
	for _, p := range n.Plans {
		p.each(visit)
	}
}

// explain runs a statement with a generic plan, as a cached statement ends up
// with, and rolls it back.
func explain(t *testing.T, c *pgx.Conn, guard, stmt string, args ...any) node {
	t.Helper()
	literals := make([]string, len(args))
	for i, a := range args {
		literals[i] = literal(a)
	}
	for _, text := range []string{"begin", guard, "set local plan_cache_mode = force_generic_plan", "prepare probe as " + stmt} {
		_, err := c.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, text)
	}
	var text []byte
	err := c.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) execute probe("+strings.Join(literals, ", ")+")",
		pgx.QueryExecModeSimpleProtocol).Scan(&text)
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), "rollback; deallocate probe", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	var plans []struct{ Plan node }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}

// literal writes an argument as text that its cast in the statement takes.
func literal(a any) string {
	switch v := a.(type) {
	case []int16:
		return array(v)
	case []int32:
		return array(v)
	case []int64:
		return array(v)
	case []string:
		return array(v)
	case []time.Time:
		out := make([]string, len(v))
		for i, at := range v {
			out[i] = `"` + at.Format(time.RFC3339Nano) + `"`
		}
		return array(out)
	default:
		return fmt.Sprintf("'%v'", v)
	}
}

func array[T any](v []T) string {
	out := make([]string, len(v))
	for i := range v {
		out[i] = fmt.Sprint(v[i])
	}
	return "'{" + strings.Join(out, ",") + "}'"
}

// Whatever the planner knows of the table, statements touch no more of it than
// they must: counted in blocks, since time says little.
func TestPlans_StayWithTheirIndexes(t *testing.T) {
	const rows = 64_000
	fill := func(w *randomWorld) error {
		_, err := w.pool.Exec(t.Context(), `insert into `+w.store.names.outbox+` (shard, message_id, topic, aggregate, payload, metadata)
select i % 64, 'm' || i, 't', 'a' || i % 5000, repeat('x', 200)::bytea, '{}' from generate_series(1, $1::int) i`, rows)
		return err
	}
	run := func(text string) func(*randomWorld) error {
		return func(w *randomWorld) error {
			_, err := w.pool.Exec(t.Context(), strings.ReplaceAll(text, "outbox", w.store.names.outbox))
			return err
		}
	}
	for name, steps := range map[string][]func(*randomWorld) error{
		"never analysed":       {fill},
		"analysed while empty": {run("analyze outbox"), fill},
		"analysed full":        {fill, run("analyze outbox")},
		"after a mass delete":  {fill, run("analyze outbox"), run("delete from outbox where id % 20 > 0")},
	} {
		t.Run(name, func(t *testing.T) {
			w := worldAt(t, ownDatabase(t), 0, On)
			_, err := w.pool.Exec(t.Context(), "alter table "+w.store.names.outbox+" set (autovacuum_enabled = off)")
			require.NoError(t, err)
			for _, step := range steps {
				require.NoError(t, step(w))
			}
			w.awaitOlder(t)
			require.NoError(t, w.store.conns.with(t.Context(), func(c *pgx.Conn) error {
				plans(t, w, c)
				return nil
			}))
		})
	}
}

// awaitOlder waits until every transaction of the server that is older than now
// has ended, those of other databases too: until then rows that were deleted are
// kept.
func (w *randomWorld) awaitOlder(t *testing.T) {
	t.Helper()
	var now string
	require.NoError(t, w.pool.QueryRow(t.Context(), "select pg_current_xact_id()::text").Scan(&now))
	require.Eventually(t, func() bool {
		var over bool
		err := w.pool.QueryRow(t.Context(), "select pg_snapshot_xmin(pg_current_snapshot()) > $1::text::xid8", now).Scan(&over)
		return err == nil && over
	}, time.Minute, 20*time.Millisecond)
}

func plans(t *testing.T, w *randomWorld, c *pgx.Conn) {
	t.Helper()
	st := w.store.stmts
	lease, err := w.store.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	r := w.store.Reader().(*reader)
	want := backends.Want{Limit: 640}
	fresh := func() []any { return r.arguments(r.scan.Allot(lease, want), want) }
	r.scan.Begin(lease, nil, time.Now())
	explain(t, c, planGuards, st.read, fresh()...) // marks index entries of removed rows, as the first to meet them
	bounded(t, "read from the start", explain(t, c, planGuards, st.read, fresh()...), 640)

	records, err := r.Read(t.Context(), lease, want)
	require.NoError(t, err)
	bounded(t, "read onward", explain(t, c, planGuards, st.read, fresh()...), 640)
	var p plan
	for i := range records {
		p.moved.add(backends.Outcome{Record: &records[i], Err: errLost}, 1)
	}
	m := p.moved
	args := []any{r.token, m.shards, m.ids, m.made, "a", m.epochs, m.attempts, m.errs}
	bounded(t, "deliver", explain(t, c, settleSettings, st.settle.deliver, r.token, m.shards, m.ids, m.made), len(records))
	bounded(t, "retry", explain(t, c, settleSettings, st.settle.retry, append(args, m.waits)...), len(records))
	bounded(t, "mark", explain(t, c, settleSettings, st.settle.mark, args...), len(records))
	bounded(t, "move", explain(t, c, settleSettings, st.settle.move, args...), len(records))
	bounded(t, "set aside", explain(t, c, settleSettings, st.settle.setAside, m.shards, m.ids), len(records))
	bounded(t, "watch", explain(t, c, planGuards, st.watch, r.xmax, r.xip), 1)

	for len(records) > 0 {
		require.NoError(t, r.scan.Remember(deliver(records), func(int) bool { return true }))
		records, err = r.Read(t.Context(), lease, backends.Want{Limit: 10_000})
		require.NoError(t, err)
	}
	bounded(t, "idle read", explain(t, c, planGuards, st.read, fresh()...), 1)
}

// bounded allows for each row of the answer some blocks of the table and its
// indexes, far fewer than the table has.
func bounded(t *testing.T, what string, got node, rows int) {
	t.Helper()
	got.each(func(n node) {
		if !strings.HasSuffix(n.Relation, "outbox") {
			return
		}
		switch n.Type {
		case "Index Scan", "Index Only Scan":
			require.NotEmpty(t, n.Cond, "%s scans a whole index", what)
		case "Tid Scan", "ModifyTable":
		default:
			t.Errorf("%s: %s on %s", what, n.Type, n.Relation)
		}
	})
	require.LessOrEqual(t, got.Hit+got.Read, 700+25*rows, "%s: blocks", what)
	t.Logf("%-20s %6d blocks for %d rows", what, got.Hit+got.Read, rows)
}
