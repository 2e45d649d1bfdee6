package sqlite_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

// msg makes a message whose payload names it.
func msg(aggregate, name string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(name))
	backends.SetAggregate(m, aggregate)
	return m
}

func TestOpen_RefusesWhatIsNoPathToADatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	require.NoError(t, os.WriteFile(garbage, []byte(strings.Repeat("this is no database ", 100)), 0o600))
	for path, want := range map[string]string{
		"":                            "name a file",
		":memory:":                    "use the memory store",
		"file:shop.db?mode=ro":        "pass a plain path",
		"a\x00b":                      "NUL byte",
		filepath.Join(dir, "no", "x"): "unable to open database file",
		dir:                           "unable to open database file",
		garbage:                       "file is not a database",
	} {
		s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
		require.ErrorContains(t, err, want, "path %q", path)
		require.Nil(t, s)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "a refused path left files behind")
}

func TestOpen_TakesEveryPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, path := range []string{
		"/" + filepath.Join(dir, "two slashes.db"), filepath.Join(dir, "a&b=c;d.db"), filepath.Join(dir, "100%41.db"),
		filepath.Join(dir, "ü:🦉.db"), filepath.Join(dir, `back\slash'quote".db`),
	} {
		s := open(t, path, sqlite.Config{})
		require.NoError(t, s.Check(t.Context()))
		require.FileExists(t, path)
	}
}

func TestConfig_NamesEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	cfg := sqlite.Config{Prefix: "Shop-", MaxPayload: -1, Retention: -time.Second, Sequences: 7}
	_, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), cfg)
	for _, field := range []string{"Prefix", "MaxPayload", "Retention", "Sequences"} {
		require.ErrorContains(t, err, field)
	}
	_, err = sqlite.New(nil, sqlite.Config{})
	require.ErrorContains(t, err, "is nil")
}

func TestClose_LeavesAHandleThatWasGiven(t *testing.T) {
	t.Parallel()
	owner := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	s, err := sqlite.New(owner.DB(), sqlite.Config{})
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.NoError(t, owner.Ping(t.Context()))
}

func TestCheck_SaysWhatToSet(t *testing.T) {
	t.Parallel()
	for pragmas, want := range map[string]string{
		"?_pragma=journal_mode(WAL)":                            "set it to 5000",
		"?_pragma=busy_timeout(5000)":                           "set it to wal",
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)": "run Migrate",
	} {
		db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db")+pragmas)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		s, err := sqlite.New(db, sqlite.Config{})
		require.NoError(t, err)
		require.ErrorContains(t, s.Check(t.Context()), want)
	}
}

// A row that is not appended must be heard of, or the caller commits without it.
func TestPublish_EveryFailureReachesTheCaller(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	s := open(t, path, sqlite.Config{})
	other, err := sqlite.New(s.DB(), sqlite.Config{Prefix: "other_"})
	require.NoError(t, err)
	ro, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ro.Close()) })
	conn, err := ro.Conn(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	fails := func(s *sqlite.Store, tx sqlite.Tx, want error, text string) {
		t.Helper()
		for _, p := range []message.Publisher{s.Publisher(tx), s.ContextPublisher()} {
			m := msg("x", "secret-payload")
			m.Metadata.Set("token", "secret-value")
			m.SetContext(sqlite.WithTx(t.Context(), tx))
			err := p.Publish("t", m)
			require.ErrorContains(t, err, text)
			if want != nil {
				require.ErrorIs(t, err, want)
			}
			require.NotContains(t, err.Error(), "secret")
		}
	}
	fails(s, nil, backends.ErrNoTransaction, "")
	fails(s, (*sql.Tx)(nil), backends.ErrNoTransaction, "is nil")
	fails(s, s.DB(), backends.ErrNoTransaction, "a *sql.DB is not a transaction")
	fails(s, conn, backends.ErrNoTransaction, "a *sql.Conn is not a transaction")

	tx, err := ro.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	fails(s, tx, nil, "read-only")
	require.NoError(t, tx.Rollback())
	fails(s, tx, backends.ErrTransactionDone, "publish before the commit")

	tx, err = s.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	fails(other, tx, backends.ErrSchema, "run Migrate")
	require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "goes on")))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"x/1 goes on"}, drain(t, s))
}

// Four statements are needed; the last is refused.
func TestPublish_ALateFailureLeavesNoPart(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	_, err := s.DB().ExecContext(t.Context(), `create trigger refuse before insert on outbox when new.message_id = 'bad'
begin select raise(abort, 'refused'); end`)
	require.NoError(t, err)
	msgs := make([]*message.Message, 3001)
	for i := range msgs {
		msgs[i] = msg("x", "bulk")
	}
	msgs[3000].UUID = "bad"
	tx, err := s.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "before")))
	require.ErrorContains(t, s.Publisher(tx).Publish("t", msgs...), "refused")
	require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "after")))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"x/1 before", "x/2 after"}, drain(t, s))
}

func TestContextPublisher_KnowsItsStore(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	other := open(t, filepath.Join(t.TempDir(), "y.db"), sqlite.Config{})
	tx, err := s.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	m := msg("x", "1")
	require.ErrorIs(t, s.ContextPublisher().Publish("t", m), backends.ErrNoTransaction)
	m.SetContext(s.WithTx(t.Context(), tx))
	require.ErrorIs(t, other.ContextPublisher().Publish("t", m), backends.ErrNoTransaction)
	require.NoError(t, s.ContextPublisher().Publish("t", m))
	got, ok := sqlite.TxFromContext(m.Context())
	require.True(t, ok)
	require.Same(t, tx, got)
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"x/1 1"}, drain(t, s))
}

func TestMigrationSQL_IsWhatMigrateDoes(t *testing.T) {
	t.Parallel()
	printer := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{Prefix: "shop_"})
	text, err := printer.MigrationSQL()
	require.NoError(t, err)
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "y.db"), sqlite.Config{Prefix: "shop_"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.ErrorIs(t, s.Check(t.Context()), backends.ErrSchema)
	_, err = s.DB().ExecContext(t.Context(), text)
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	before := schema(t, s)
	require.NoError(t, s.Migrate(t.Context()))
	require.Equal(t, before, schema(t, s))
	require.Len(t, before, len(schema(t, printer)))
}

// Ids that went back are not taken for old ones.
func TestRead_AfterIdsWentBack(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{})
	w := newWorker(t, s)
	changed := s.Watch()
	for i, undo := range []string{"", "delete from outbox", "delete from sqlite_sequence where name = 'outbox'"} {
		_, err := s.DB().ExecContext(t.Context(), undo)
		require.NoError(t, err)
		_, err = changed(t.Context())
		require.NoError(t, err)
		publish(t, s, msg("x", fmt.Sprint(i)))
		hint, err := changed(t.Context())
		require.NoError(t, err)
		require.True(t, hint)
		require.Equal(t, []string{fmt.Sprintf("x/%d %d", i+1, i)}, w.drain())
	}
}

// SQLite takes a limit below 0 for none.
func TestLimits_MustBeLimits(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{Retention: time.Hour})
	w := newWorker(t, s)
	_, read := w.reader.Read(t.Context(), w.lease, backends.Want{Limit: -1})
	_, parked := s.Parked(t.Context(), "", -1)
	_, dead := s.Dead(t.Context(), backends.DeadFilter{Limit: -1})
	_, purge := s.Purge(t.Context(), -1)
	for _, err := range []error{read, parked, dead, purge} {
		require.ErrorContains(t, err, "imit is -1")
	}
}

// What is kept is kept for its time, is removed in steps, and nothing else is.
func TestPurge_RemovesOnlyWhatIsPastItsTime(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "x.db"), sqlite.Config{Retention: time.Hour})
	publish(t, s, msg("x", "1"), msg("x", "2"), msg("x", "3"))
	drain(t, s)
	publish(t, s, msg("x", "4"))
	n, err := s.Purge(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = s.DB().ExecContext(t.Context(), "update outbox_archive set delivered_at = delivered_at - 3600000000")
	require.NoError(t, err)
	for _, want := range []int{2, 1, 0} {
		n, err = s.Purge(t.Context(), 2)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Equal(t, []string{"x/4 4"}, drain(t, s))
}

func schema(t *testing.T, s *sqlite.Store) (out []string) {
	rows, err := s.DB().QueryContext(t.Context(), "select type || ' ' || name from sqlite_master order by 1")
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		out = append(out, line)
	}
	require.NoError(t, rows.Err())
	return out
}

// publish appends by the plain means of database/sql.
func publish(t *testing.T, s *sqlite.Store, msgs ...*message.Message) {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Publisher(tx).Publish("t", msgs...))
	require.NoError(t, tx.Commit())
}

// worker is a reader with all shards.
type worker struct {
	t      *testing.T
	lease  backends.Lease
	reader backends.Reader
}

func newWorker(t *testing.T, s *sqlite.Store) *worker {
	t.Helper()
	lease, err := s.Lease(t.Context(), "worker", time.Minute)
	require.NoError(t, err)
	require.Len(t, lease.Shards, backends.Shards)
	return &worker{t, lease, s.Reader()}
}

// drain reads and settles until nothing is due.
func (w *worker) drain() (out []string) {
	w.t.Helper()
	for {
		got, err := w.reader.Read(w.t.Context(), w.lease, backends.Want{Limit: 100})
		require.NoError(w.t, err)
		if len(got) == 0 {
			return out
		}
		outcomes := make([]backends.Outcome, len(got))
		for i := range got {
			out = append(out, fmt.Sprintf("%s/%d %s", got[i].Aggregate, got[i].Sequence, got[i].Payload))
			outcomes[i] = backends.Outcome{Record: &got[i], Action: backends.Delivered}
		}
		require.NoError(w.t, w.reader.Settle(w.t.Context(), w.lease, outcomes))
	}
}

func drain(t *testing.T, s *sqlite.Store) []string {
	t.Helper()
	return newWorker(t, s).drain()
}
