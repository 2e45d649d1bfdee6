package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // the other driver that publishers work with
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

func msg(aggregate, payload string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(payload))
	backends.SetAggregate(m, aggregate)
	return m
}

// begin begins a transaction that does not outlast the test.
func begin(t *testing.T, p *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // after a commit it does nothing
	return tx
}

// row is what a test looks at in the outbox.
type row struct {
	ID       int64
	Sequence *int64
	Payload  string
}

func rowsOf(t *testing.T, p *pgxpool.Pool, schema, aggregate string) []row {
	t.Helper()
	rows, err := p.Query(t.Context(), `select id, sequence, convert_from(payload, 'UTF8') from `+schema+`.outbox where aggregate = $1 order by id`, aggregate)
	require.NoError(t, err)
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	return out
}

// The lower transaction id takes the aggregate's lock second: the id of its
// record is drawn after the other's commit.
func TestPublisher_OrderIsThatOfTheLocks(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	_, err := p.Exec(t.Context(), "create table "+sch+".noise (n int)")
	require.NoError(t, err)
	for pair := range 100 {
		name := "a" + strconv.Itoa(pair)
		second := begin(t, p)
		_, err = second.Exec(t.Context(), "insert into "+sch+".noise values (1)") // draws the lower transaction id
		require.NoError(t, err)
		first := begin(t, p)
		batch := func(who string) []*message.Message {
			if pair%2 == 0 {
				return []*message.Message{msg(name, who)}
			}
			return []*message.Message{msg("other"+who, who), msg(name, who), msg("", who), msg(name, who)}
		}
		require.NoError(t, s.Publisher(first).Publish("t", batch("first")...))
		done := make(chan error, 1)
		go func() { done <- s.Publisher(second).Publish("t", batch("second")...) }()
		waitForLock(t, p, second.Conn().PgConn().PID())
		require.NoError(t, first.Commit(t.Context()))
		require.NoError(t, <-done)
		require.NoError(t, second.Commit(t.Context()))
		got := rowsOf(t, p, sch, name)
		for i, r := range got {
			want := "first"
			if i >= len(got)/2 {
				want = "second"
			}
			require.Equal(t, want, r.Payload)
			require.EqualValues(t, i+1, *r.Sequence)
		}
	}
}

// waitForLock waits until a session waits for a lock.
func waitForLock(t *testing.T, p *pgxpool.Pool, pid uint32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		var waiting bool
		require.NoError(t, p.QueryRow(t.Context(), `select coalesce(wait_event_type, '') = 'Lock' from pg_stat_activity where pid = $1`, int64(pid)).Scan(&waiting))
		if waiting {
			return
		}
		require.True(t, time.Now().Before(end), "session %d does not wait", pid)
	}
}

// Concurrent transactions with several aggregates a call, in any order: no
// deadlock, no gap, and ids in the order of sequences.
func TestPublisher_ManyWritersNoDeadlockNoGap(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	const writers, each, aggregates = 8, 40, 6
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				errs <- pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
					msgs := make([]*message.Message, aggregates)
					for k := range msgs {
						msgs[k] = msg("a"+strconv.Itoa((w+i+k*(1+w%2*4))%aggregates), "x")
					}
					return s.Publisher(tx).Publish("t", msgs...)
				})
			}
		})
	}
	go func() { wg.Wait(); close(errs) }()
	for err := range errs {
		require.NoError(t, err)
	}
	total := 0
	for a := range aggregates {
		for i, r := range rowsOf(t, p, sch, "a"+strconv.Itoa(a)) {
			require.EqualValues(t, i+1, *r.Sequence)
			total++
		}
	}
	require.Equal(t, writers*each*aggregates, total)
}

func TestPublisher_EveryWayToExecute(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	begin := map[string]func(t *testing.T) (message.Publisher, func() error){}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		begin[mode.String()] = func(t *testing.T) (message.Publisher, func() error) {
			tx, err := pool(t, testenv.PostgresURL, mode).Begin(t.Context())
			require.NoError(t, err)
			return s.Publisher(tx), func() error { return tx.Commit(t.Context()) }
		}
	}
	for _, driver := range []string{"pgx", "postgres"} {
		begin["database sql "+driver] = func(t *testing.T) (message.Publisher, func() error) {
			db, err := sql.Open(driver, testenv.Server(t, testenv.PostgresURL))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return s.SQLPublisher(tx), tx.Commit
		}
	}
	binary := string([]byte{0, 1, '\\', '"', '\'', 255, '{', ','})
	for name, start := range begin {
		t.Run(name, func(t *testing.T) {
			pub, commit := start(t)
			topic := watermill.NewShortUUID()
			single := msg("x", binary)
			single.Metadata["k"] = `"\'{},` + "\u2028é"
			require.NoError(t, pub.Publish(topic, single))
			require.NoError(t, pub.Publish(topic, msg("x", ""), msg("", binary), msg(`a"\,{}'`, binary), msg("x", binary)))
			alone := msg("", "alone")
			require.NoError(t, pub.Publish(topic, alone))
			require.NoError(t, commit())
			var payloads [][]byte
			var sequences []int64
			var metadata string
			require.NoError(t, p.QueryRow(t.Context(), `select array_agg(payload order by id), array_agg(coalesce(sequence, 0) order by id),
				min(metadata::text) filter (where metadata::text <> '{}') from `+sch+`.outbox where topic = $1`, topic).Scan(&payloads, &sequences, &metadata))
			require.Equal(t, [][]byte{[]byte(binary), {}, []byte(binary), []byte(binary), []byte(binary), []byte("alone")}, payloads)
			require.Equal(t, []int64{1, 2, 0, 1, 3, 0}, sequences)
			require.Contains(t, metadata, "é")
		})
	}
}

func TestPublisher_TenThousandAggregatesInOneCall(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	s := open(t, p, postgres.Config{})
	msgs := make([]*message.Message, 10_000)
	for i := range msgs {
		msgs[i] = msg("a"+strconv.Itoa(i*7919%10_000), "x")
	}
	for range 7 { // a cached plan is made anew after the fifth time
		start := time.Now()
		require.NoError(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error { return s.Publisher(tx).Publish("t", msgs...) }))
		require.Less(t, time.Since(start), 10*time.Second)
	}
}

func TestPublisher_SequencesOffAndSuppliedOnesTouchNoCounter(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	off := open(t, p, postgres.Config{Schema: sch, Sequences: postgres.Off})
	on := open(t, p, postgres.Config{Schema: sch})
	supplied := func(n int64) *message.Message {
		m := msg("x", "s"+strconv.FormatInt(n, 10))
		backends.SetSequence(m, n)
		return m
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		require.NoError(t, off.Publisher(tx).Publish("t", msg("x", "1")))
		require.NoError(t, off.Publisher(tx).Publish("t", msg("x", "2"), msg("y", "3")))
		require.NoError(t, on.Publisher(tx).Publish("t", supplied(41)))
		return on.Publisher(tx).Publish("t", supplied(42), supplied(43))
	}))
	var counters int
	require.NoError(t, p.QueryRow(t.Context(), "select count(*) from "+sch+".outbox_sequences").Scan(&counters))
	require.Zero(t, counters)
	got := rowsOf(t, p, sch, "x")
	require.Len(t, got, 5)
	require.Nil(t, got[0].Sequence)
	require.EqualValues(t, 43, *got[4].Sequence)
}

// Nothing of the caller's transaction is changed: its settings, savepoints and
// isolation are as they were, and it is open.
func TestPublisher_LeavesTheTransactionAlone(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	s := open(t, p, postgres.Config{})
	state := func(tx pgx.Tx) (settings []string) {
		rows, err := tx.Query(t.Context(), "select name || '=' || setting from pg_settings order by name")
		require.NoError(t, err)
		settings, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return settings
	}
	tx, err := p.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "savepoint mine")
	require.NoError(t, err)
	before := state(tx)
	require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "1"), msg("y", "1")))
	require.Equal(t, before, state(tx))
	_, err = tx.Exec(t.Context(), "rollback to mine")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	b, err := s.Backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Ready)
}

func TestPublisher_EightGoroutinesOneTransaction(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	db := stdlib.OpenDBFromPool(p)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	tx := begin(t, p)
	sqlTx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	nested, err := tx.Begin(t.Context())
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make(chan error, 8*3*20)
	for g := range 8 {
		wg.Go(func() {
			for range 20 { // each call with a publisher of its own
				errs <- s.Publisher(tx).Publish("t", msg("pgx"+strconv.Itoa(g), "x"))
				errs <- s.Publisher(nested).Publish("t", msg("pgx"+strconv.Itoa(g), "x"))
				errs <- s.SQLPublisher(sqlTx).Publish("t", msg("sql"+strconv.Itoa(g), "x"))
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, nested.Commit(t.Context()))
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, sqlTx.Commit())
	for g := range 8 {
		require.Len(t, rowsOf(t, p, sch, fmt.Sprintf("pgx%d", g)), 40)
		require.Len(t, rowsOf(t, p, sch, fmt.Sprintf("sql%d", g)), 20)
	}
}

// An emptied outbox goes on with higher ids; one restarted from 1 is read, too.
func TestReader_IdsThatWentBack(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	lease, err := s.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	r := s.Reader()
	var got []string
	for round := range 3 {
		publishOne(t, p, s, strconv.Itoa(round))
		records, err := r.Read(t.Context(), lease, backends.Want{Limit: 10})
		require.NoError(t, err)
		for _, rec := range records {
			got = append(got, string(rec.Payload))
		}
		require.NoError(t, r.Settle(t.Context(), lease, delivered(records, nil)))
		_, err = p.Exec(t.Context(), "truncate "+sch+".outbox restart identity")
		require.NoError(t, err)
	}
	require.True(t, slices.Equal([]string{"0", "1", "2"}, got), "%v", got)
}

// Rows that something else inserted are read as far as they make sense, and
// refused by the table where they do not.
func TestReader_RowsInsertedByHand(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	insert := func(shard, aggregate, sequence, metadata string) error {
		_, err := p.Exec(t.Context(), "insert into "+sch+".outbox (shard, message_id, topic, aggregate, sequence, payload, metadata) values ("+
			shard+", 'm', 't', "+aggregate+", "+sequence+", 'x', "+metadata+")")
		return err
	}
	require.Error(t, insert("64", "'x'", "1", "'{}'"))
	require.Error(t, insert("1", "''", "1", "'{}'"))
	require.Error(t, insert("1", "'x'", "0", "'{}'"))
	require.Error(t, insert("1", "'x'", "1", "'[]'"))
	require.NoError(t, insert("1", "null", "null", `'{"n": 1, "s": "a\"b", "o": {"k": [1]}, "z": null}'`))
	require.NoError(t, insert("1", "'x'", "null", "default"))
	lease, err := s.Lease(t.Context(), "a", time.Hour)
	require.NoError(t, err)
	got, err := s.Reader().Read(t.Context(), lease, backends.Want{Limit: 10})
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, message.Metadata{"n": "1", "s": `a"b`, "o": `{"k": [1]}`, "z": "null"}, got[0].Metadata)
	require.Empty(t, got[1].Metadata)
}

func publishOne(t *testing.T, p *pgxpool.Pool, s *postgres.Store, payload string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(context.WithoutCancel(t.Context()), p, func(tx pgx.Tx) error {
		return s.Publisher(tx).Publish("t", msg("x", payload))
	}))
}
