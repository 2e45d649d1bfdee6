package mysql_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/testenv"
)

// secret is in what is published or configured and must be in no error.
const secret = "hunter2-secret"

// Faults of messages are found before anything is sent: the transaction goes on.
func TestPublish_BadMessagesLeaveTheTransactionUsable(t *testing.T) {
	s := open(t, database(t, testenv.MySQLDSN, ""), mysql.Config{MaxPayload: 100})
	changed := func(change func(*message.Message)) *message.Message {
		m := msg("x", secret)
		change(m)
		return m
	}
	for name, c := range map[string]struct {
		topic string
		m     *message.Message
		want  string
	}{
		"empty topic":         {"", msg("x", "1"), "topic is empty"},
		"long topic":          {strings.Repeat("t", 256), msg("x", "1"), "topic has 256 bytes"},
		"aggregate of a MB":   {"t", msg(strings.Repeat("x", 1<<20), secret), "aggregate has 1048576 bytes"},
		"aggregate with NUL":  {"t", msg("\x00", secret), "aggregate holds a NUL"},
		"metadata not UTF-8":  {"t", changed(func(m *message.Message) { m.Metadata["k"] = secret + "\xff" }), "metadata[k] is not valid UTF-8"},
		"empty metadata key":  {"t", changed(func(m *message.Message) { m.Metadata[""] = secret }), "metadata key is empty"},
		"payload above":       {"t", msg("x", strings.Repeat(secret, 10)), "payload has 140 bytes, at most 100"},
		"no message id":       {"t", changed(func(m *message.Message) { m.UUID = "" }), "message id is empty"},
		"a sequence below 1":  {"t", changed(func(m *message.Message) { m.Metadata[backends.SequenceKey] = "-1" }), "sequence is not a positive number"},
		"no message at all":   {"t", nil, "message is nil"},
		"too much metadata":   {"t", changed(func(m *message.Message) { m.Metadata["k"] = strings.Repeat(secret, 1<<13) }), "metadata has"},
		"aggregate not UTF-8": {"t", msg("\xff", secret), "aggregate is not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, s, sql.LevelDefault)
			err := s.Publisher(tx).Publish(c.topic, msg("x", "good"), c.m)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), secret)
			require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "good")))
			require.NoError(t, tx.Commit())
		})
	}
	b, err := s.Backlog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 12, b.Ready)
}

// Faults of the transaction or the database are named, with what to do, and
// nothing of the call stays in the transaction.
func TestPublish_TroubleIsNamed(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{})
		missing, err := mysql.New(s.DB(), mysql.Config{Prefix: "other_"})
		require.NoError(t, err)
		exec := func(text string) func(tx *sql.Tx) {
			return func(tx *sql.Tx) {
				_, err := tx.ExecContext(t.Context(), text)
				require.NoError(t, err)
			}
		}
		for name, c := range map[string]struct {
			store *mysql.Store
			spoil func(tx *sql.Tx)
			want  string
			is    error
		}{
			"committed":     {s, func(tx *sql.Tx) { require.NoError(t, tx.Commit()) }, "publish before the commit", backends.ErrTransactionDone},
			"rolled back":   {s, func(tx *sql.Tx) { require.NoError(t, tx.Rollback()) }, "ended", backends.ErrTransactionDone},
			"missing table": {missing, exec("do 1"), "run Migrate", backends.ErrSchema},
		} {
			tx := begin(t, s, sql.LevelDefault)
			c.spoil(tx)
			err := c.store.Publisher(tx).Publish("t", msg("x", secret))
			require.ErrorContains(t, err, c.want, name)
			require.NotContains(t, err.Error(), secret)
			if c.is != nil {
				require.ErrorIs(t, err, c.is, name)
			}
		}
		tx, err := s.DB().BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		require.NoError(t, err)
		require.ErrorContains(t, s.Publisher(tx).Publish("t", msg("x", secret)), "read-only")
		require.NoError(t, tx.Rollback())

		// A count that is taken and a row that fails: the count goes back.
		_, err = s.DB().ExecContext(t.Context(), "alter table outbox add constraint spoilt check (topic <> 'bad')")
		require.NoError(t, err)
		tx = begin(t, s, sql.LevelDefault)
		err = s.Publisher(tx).Publish("bad", msg("x", secret), msg("y", secret))
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret)
		require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "1")))
		require.NoError(t, tx.Commit())
		var counts, rows int
		require.NoError(t, s.DB().QueryRowContext(t.Context(), "select (select count(*) from outbox_sequences), (select count(*) from outbox where id > 0)").Scan(&counts, &rows))
		require.Equal(t, []int{1, 1}, []int{counts, rows})
	})
}

func TestStore_ClosedHandleIsNamed(t *testing.T) {
	s, err := mysql.Open(t.Context(), testenv.Server(t, testenv.MySQLDSN), mysql.Config{})
	require.NoError(t, err)
	require.NoError(t, s.Ping(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Ping(t.Context()), backends.ErrClosed)
	require.ErrorIs(t, s.Check(t.Context()), backends.ErrClosed)
	_, err = s.Lease(t.Context(), "a", time.Minute)
	require.ErrorIs(t, err, backends.ErrClosed)
}

func TestConfig_EveryFaultAtOnce(t *testing.T) {
	db, err := sql.Open("mysql", "u@tcp(127.0.0.1:1)/x")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = mysql.New(db, mysql.Config{Prefix: "my-app.", MaxPayload: -1, Retention: -1, Sequences: 7})
	for _, field := range []string{"Prefix", "MaxPayload", "Retention", "Sequences"} {
		require.ErrorContains(t, err, "mysql: "+field)
	}
	_, err = mysql.New(nil, mysql.Config{})
	require.ErrorContains(t, err, "nil")
}

// A data source name that cannot be right says so before anything connects, and no
// error holds what it was.
func TestOpen_SaysWhatIsWrongWithADSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                              "names no database",
		"mysql://u:" + secret + "@h/db": "is a URL",
		"u:" + secret + "@tcp(h:1":      "cannot be parsed",
		"u:" + secret + "@tcp(h:1)/":    "names no database",
		"u:" + secret + "@tcp(h:1)/d?parsetime=true":         "case counts",
		"u:" + secret + "@tcp(h:1)/d?multistatements=true":   "case counts",
		"u:" + secret + "@tcp(h:1)/d?parseTime=" + secret:    "cannot be parsed",
		"u:" + secret + "@tcp(h:1)/d?autocommit=0":           "autocommit off",
		"u:" + secret + "@tcp(h:1)/?autocommit=off&tls=none": "cannot be parsed",
	} {
		_, err := mysql.Open(t.Context(), dsn, mysql.Config{})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
	}
	s, err := mysql.Open(t.Context(), "u:"+secret+"@tcp(127.0.0.1:1)/d", mysql.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	err = s.Ping(t.Context())
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
}

// Aggregates and topics are compared byte for byte, whatever the collation of
// database and connection: each of these counts from one.
func TestNames_AreComparedByteForByte(t *testing.T) {
	names := []string{"a", "A", "á", "a ", "a  ", " a", "ａ", "🦉", "ß", "ss", "İ", "i", "a\t", "e\u0301", "é", `a"`, `a'`, `a\`, "a%", "a_"}
	for name, variable := range engines {
		t.Run(name, func(t *testing.T) {
			for i, options := range []string{"character set utf8mb4 collate utf8mb4_general_ci", "character set latin1", "character set utf8mb3"} {
				dsn := database(t, variable, options)
				dsn.Collation = []string{"utf8mb4_general_ci", "latin1_swedish_ci", "utf8mb4_bin"}[i]
				dsn.InterpolateParams = i == 1
				s := open(t, with(dsn, map[string]string{"sql_mode": "'ANSI_QUOTES,STRICT_ALL_TABLES'"}), mysql.Config{})
				var msgs []*message.Message
				for _, n := range names {
					msgs = append(msgs, msg(n, n))
					require.NoError(t, publish(t.Context(), s, n, msg("x", n)))
				}
				require.NoError(t, publish(t.Context(), s, "t", msgs...))
				lease, err := s.Lease(t.Context(), names[7], time.Minute)
				require.NoError(t, err)
				reader := s.Reader()
				got, err := reader.Read(t.Context(), lease, backends.Want{Limit: 1000, SkipTopics: []string{"a"}})
				require.NoError(t, err)
				require.Len(t, got, 2*len(names)-1)
				for _, r := range got {
					require.EqualValues(t, 1, r.Sequence, "%q of %q", r.Aggregate, r.Topic)
				}
				for i := range got {
					if got[i].Topic == "t" {
						require.NoError(t, reader.Settle(t.Context(), lease, []backends.Outcome{{Record: &got[i], Action: backends.Park}}))
					}
				}
				for _, n := range names {
					dead, err := s.Dead(t.Context(), backends.DeadFilter{Aggregate: n})
					require.NoError(t, err)
					require.Len(t, dead, 1, n)
					require.Equal(t, n, string(dead[0].Payload))
				}
				parked, err := s.Parked(t.Context(), "", 100)
				require.NoError(t, err)
				require.Len(t, parked, len(names))
				n, err := s.Requeue(t.Context(), backends.DeadTarget{Aggregate: "a "})
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
		})
	}
}
