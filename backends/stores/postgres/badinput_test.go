package postgres_test

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/testenv"
)

// secret is in what is published and must be in no error.
const secret = "hunter2-secret"

// Faults of messages are found before anything is sent: the transaction goes on.
func TestPublish_BadMessagesLeaveTheTransactionUsable(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	s := open(t, p, postgres.Config{MaxPayload: 100})
	with := func(change func(*message.Message)) *message.Message {
		m := msg("x", secret)
		change(m)
		return m
	}
	for name, c := range map[string]struct {
		topic string
		m     *message.Message
		want  string
	}{
		"empty topic":            {"", msg("x", "1"), "topic is empty"},
		"topic with NUL":         {"a\x00b", msg("x", "1"), "topic holds a NUL"},
		"long topic":             {strings.Repeat("t", 256), msg("x", "1"), "topic has 256 bytes"},
		"aggregate of a MB":      {"t", msg(strings.Repeat("x", 1<<20), secret), "aggregate has 1048576 bytes"},
		"aggregate with NUL":     {"t", msg("\x00", secret), "aggregate holds a NUL"},
		"aggregate not UTF-8":    {"t", msg("\xff", secret), "aggregate is not valid UTF-8"},
		"metadata not UTF-8":     {"t", with(func(m *message.Message) { m.Metadata["k"] = secret + "\xff" }), "metadata[k] is not valid UTF-8"},
		"metadata key not UTF-8": {"t", with(func(m *message.Message) { m.Metadata["\xff"] = secret }), "metadata key is not valid UTF-8"},
		"metadata with NUL":      {"t", with(func(m *message.Message) { m.Metadata["k"] = secret + "\x00" }), "metadata[k] holds a NUL"},
		"empty metadata key":     {"t", with(func(m *message.Message) { m.Metadata[""] = secret }), "metadata key is empty"},
		"payload above":          {"t", msg("x", strings.Repeat(secret, 10)), "payload has 140 bytes, at most 100"},
		"no message id":          {"t", with(func(m *message.Message) { m.UUID = "" }), "message id is empty"},
		"bad sequence":           {"t", with(func(m *message.Message) { m.Metadata[backends.SequenceKey] = "-1" }), "sequence is not a positive number"},
		"nil":                    {"t", nil, "message is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, p)
			err := s.Publisher(tx).Publish(c.topic, msg("x", "good"), c.m)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), secret)
			var fault *backends.MessageError
			require.ErrorAs(t, err, &fault)
			require.NotEmpty(t, fault.Remedy)
			require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "good")))
			require.NoError(t, tx.Commit(t.Context()))
		})
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error { return s.Publisher(tx).Publish("t", msg("x", "")) }))
	b, err := s.Backlog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 15, b.Ready)
}

// Faults of the transaction or the database are named, with what to do.
func TestPublish_TroubleIsNamed(t *testing.T) {
	p := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, p)
	s := open(t, p, postgres.Config{Schema: sch})
	missing, err := postgres.New(p, postgres.Config{Schema: sch, Prefix: "other_"})
	require.NoError(t, err)
	role := schema(t, p)
	_, err = p.Exec(t.Context(), "create role "+role)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := p.Exec(context.WithoutCancel(t.Context()), "drop owned by "+role+"; drop role "+role)
		require.NoError(t, err)
	})
	exec := func(sql string) func(pgx.Tx) {
		return func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), sql) }
	}
	for name, c := range map[string]struct {
		store *postgres.Store
		spoil func(tx pgx.Tx)
		want  string
		is    error
	}{
		"committed":     {s, func(tx pgx.Tx) { require.NoError(t, tx.Commit(t.Context())) }, "publish before the commit", backends.ErrTransactionDone},
		"rolled back":   {s, func(tx pgx.Tx) { require.NoError(t, tx.Rollback(t.Context())) }, "ended", backends.ErrTransactionDone},
		"aborted":       {s, exec("select 1/0"), "roll it back", backends.ErrTransactionDone},
		"read-only":     {s, exec("set transaction read only"), "read-only", nil},
		"missing table": {missing, exec("select 1"), "run Migrate", backends.ErrSchema},
		"no rights":     {s, exec("set local role " + role), "grant insert on", nil},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, p)
			c.spoil(tx)
			err := c.store.Publisher(tx).Publish("t", msg("x", secret))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), secret)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
	t.Run("the rights it names are enough", func(t *testing.T) {
		tx := begin(t, p)
		exec("set local role " + role)(tx)
		text := s.Publisher(tx).Publish("t", msg("x", "1")).Error()
		_, grants, ok := strings.Cut(text, "run ")
		require.True(t, ok, text)
		grants, _, _ = strings.Cut(grants, ": permission")
		require.NoError(t, tx.Rollback(t.Context()))
		_, err := p.Exec(t.Context(), strings.ReplaceAll(grants, "the_user", role))
		require.NoError(t, err, grants)
		tx = begin(t, p)
		exec("set local role " + role)(tx)
		require.NoError(t, s.Publisher(tx).Publish("t", msg("x", "1"), msg("y", "1")))
	})
}

func TestStore_ClosedPoolIsNamed(t *testing.T) {
	s, err := postgres.Open(t.Context(), testenv.Server(t, testenv.PostgresURL), postgres.Config{})
	require.NoError(t, err)
	require.NoError(t, s.Ping(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Ping(t.Context()), backends.ErrClosed)
	require.ErrorIs(t, s.Check(t.Context()), backends.ErrClosed)
	_, err = s.Lease(t.Context(), "a", time.Minute)
	require.ErrorIs(t, err, backends.ErrClosed)
	_, err = s.Reader().Read(t.Context(), backends.Lease{Owner: "a", Shards: []backends.ShardLease{{Shard: 1, Epoch: 1}}}, backends.Want{Limit: 1})
	require.ErrorIs(t, err, backends.ErrClosed)
	db := stdlib.OpenDB(pgx.ConnConfig{})
	require.NoError(t, db.Close())
	s, err = postgres.NewSQL(db, postgres.Config{})
	require.NoError(t, err)
	require.ErrorIs(t, s.Ping(t.Context()), backends.ErrClosed)
}

func TestConfig_EveryFaultAtOnce(t *testing.T) {
	p, err := pgxpool.New(t.Context(), "postgres://localhost/x")
	require.NoError(t, err)
	t.Cleanup(p.Close)
	_, err = postgres.New(p, postgres.Config{Schema: "Order", Prefix: "my-app.", MaxPayload: -1, Retention: -1, Sequences: 7})
	for _, field := range []string{"Schema", "Prefix", "MaxPayload", "Retention", "Sequences"} {
		require.ErrorContains(t, err, "postgres: "+field)
	}
	for _, name := range []string{"my-app.orders.v1", "Order", "a b", "1abc", "ünïcode", `a"b`} {
		_, err = postgres.New(p, postgres.Config{Prefix: name})
		require.ErrorContains(t, err, "Prefix", name)
	}
	_, err = postgres.New(p, postgres.Config{Pooler: true})
	require.ErrorContains(t, err, "DefaultQueryExecMode")
	_, err = postgres.New(nil, postgres.Config{})
	require.Error(t, err)
	_, err = postgres.NewSQL(nil, postgres.Config{})
	require.Error(t, err)
}

// Another driver than pgx's publishes and migrates. What it cannot do it says.
func TestNewSQL_OtherDriver(t *testing.T) {
	admin := pool(t, testenv.PostgresURL, pgx.QueryExecModeCacheStatement)
	sch := schema(t, admin)
	db, err := sql.Open("postgres", testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := postgres.NewSQL(db, postgres.Config{Schema: sch})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.Migrate(t.Context()))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.SQLPublisher(tx).Publish("t", msg("x", "1"), msg("x", "2")))
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, s.SQLPublisher(tx).Publish("t", msg("x", "3")), backends.ErrTransactionDone)
	tx, err = db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "select 1/0")
	require.Error(t, err)
	require.ErrorIs(t, s.SQLPublisher(tx).Publish("t", msg("x", "3")), backends.ErrTransactionDone)
	require.NoError(t, tx.Rollback())
	require.Len(t, rowsOf(t, admin, sch, "x"), 2)
	require.ErrorContains(t, s.Check(t.Context()), "pgx's own driver")
}

// No error holds a password, however it was written.
func TestErrors_HoldNoSecrets(t *testing.T) {
	const pw = "p%w#d@ x"
	for _, addr := range []string{
		"postgres://u:" + url.QueryEscape(pw) + "@127.0.0.1:1/x",
		"postgres://u:" + url.QueryEscape(pw) + "@127.0.0.1:notaport/x",
		"postgres://u:" + pw + "@127.0.0.1:1/x",
		"host=127.0.0.1 port=1 password='" + pw + "' sslmode=nonsense",
		"::" + pw,
	} {
		s, err := postgres.Open(t.Context(), addr, postgres.Config{})
		if err == nil {
			err = s.Ping(t.Context())
			require.NoError(t, s.Close())
		}
		require.Error(t, err)
		for _, form := range []string{pw, url.QueryEscape(pw), url.PathEscape(pw), "p%w"} {
			require.NotContains(t, err.Error(), form)
		}
	}
}
