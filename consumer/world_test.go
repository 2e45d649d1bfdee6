package consumer_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/consumer"
	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long a test waits for anything.
const limit = 30 * time.Second

// world is a service's database: its store, and a table that its handler writes to.
type world struct {
	t     testing.TB
	store interface {
		backends.Inboxes
		backends.Outbox
	}
	// apply notes in the handler's transaction that a message was handled.
	apply func(ctx context.Context, msg *message.Message) error
	// end ends the handler's transaction as no handler should; nil: it cannot.
	end func(ctx context.Context, commit bool) error
	// effects lists what was noted, "aggregate/sequence" each, in order.
	effects func() []string
}

// worlds runs a test on every store.
func worlds(t *testing.T, test func(t *testing.T, w *world)) {
	for name, open := range map[string]func(testing.TB) *world{
		"memory": memoryWorld, "sqlite": sqliteWorld, "postgres": pgxWorld, "postgres, database/sql": sqlWorld,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func label(msg *message.Message) string {
	if backends.Aggregate(msg) == "" {
		return msg.UUID
	}
	return backends.Aggregate(msg) + "/" + msg.Metadata.Get(backends.SequenceKey)
}

func memoryWorld(t testing.TB) *world {
	s, err := memory.New(memory.Config{})
	require.NoError(t, err)
	w := &world{t: t, store: s}
	var read []string
	reader := s.Reader()
	w.apply = func(ctx context.Context, msg *message.Message) error {
		tx, ok := memory.TxFromContext(ctx)
		if !ok {
			return errors.New("no transaction")
		}
		return s.Publisher(tx).Publish("effects", message.NewMessage("e", []byte(label(msg))))
	}
	w.end = func(ctx context.Context, commit bool) error {
		tx, _ := memory.TxFromContext(ctx)
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	}
	w.effects = func() []string {
		lease, err := s.Lease(context.WithoutCancel(t.Context()), "checker", time.Hour)
		require.NoError(t, err)
		got, err := reader.Read(context.WithoutCancel(t.Context()), lease, backends.Want{Limit: 1_000_000})
		require.NoError(t, err)
		for i := range got {
			if got[i].Topic == "effects" {
				read = append(read, string(got[i].Payload))
			}
			require.NoError(t, reader.Settle(context.WithoutCancel(t.Context()), lease, []backends.Outcome{{Record: &got[i], Action: backends.Delivered}}))
		}
		return read
	}
	return w
}

// sqlWorldOf is what engines with SQL have in common.
func sqlWorldOf(w *world, db *sql.DB, table string, tx func(ctx context.Context) (postgres.SQLTx, bool)) {
	w.apply = func(ctx context.Context, msg *message.Message) error {
		h, ok := tx(ctx)
		if !ok {
			return errors.New("no transaction")
		}
		_, err := h.ExecContext(ctx, `insert into `+table+` (label) values ($1)`, label(msg))
		return err
	}
	w.end = func(ctx context.Context, commit bool) error {
		h, _ := tx(ctx)
		if commit {
			return h.(*sql.Tx).Commit()
		}
		return h.(*sql.Tx).Rollback()
	}
	w.effects = func() []string {
		rows, err := db.QueryContext(context.WithoutCancel(w.t.Context()), `select label from `+table+` order by n`)
		require.NoError(w.t, err)
		defer func() { require.NoError(w.t, rows.Close()) }()
		var out []string
		for rows.Next() {
			var s string
			require.NoError(w.t, rows.Scan(&s))
			out = append(out, s)
		}
		require.NoError(w.t, rows.Err())
		return out
	}
}

func sqliteWorld(t testing.TB) *world {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "box.db"), sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context()))
	_, err = s.DB().ExecContext(t.Context(), `create table effects (n integer primary key autoincrement, label text not null)`)
	require.NoError(t, err)
	w := &world{t: t, store: s}
	sqlWorldOf(w, s.DB(), "effects", func(ctx context.Context) (postgres.SQLTx, bool) {
		tx, ok := sqlite.TxFromContext(ctx)
		return tx, ok
	})
	return w
}

func pgSchema(t testing.TB) (*pgxpool.Pool, *sql.DB, string) {
	cfg, err := pgxpool.ParseConfig(testenv.Server(t, testenv.PostgresURL))
	require.NoError(t, err)
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDB(*cfg.ConnConfig)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	name := "t_" + strings.ToLower(rand.Text()[:12])
	_, err = pool.Exec(t.Context(), "create schema "+name+"; create table "+name+".effects (n bigserial primary key, label text not null)")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop schema "+name+" cascade")
		require.NoError(t, err)
	})
	return pool, db, name
}

func pgxWorld(t testing.TB) *world {
	pool, db, schema := pgSchema(t)
	s, err := postgres.New(pool, postgres.Config{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	w := &world{t: t, store: s}
	sqlWorldOf(w, db, schema+".effects", nil)
	w.apply = func(ctx context.Context, msg *message.Message) error {
		tx, ok := postgres.TxFromContext(ctx)
		if !ok {
			return errors.New("no transaction")
		}
		_, err := tx.Exec(ctx, `insert into `+schema+`.effects (label) values ($1)`, label(msg))
		return err
	}
	w.end = func(ctx context.Context, commit bool) error {
		tx, _ := postgres.TxFromContext(ctx)
		if commit {
			return tx.Commit(ctx)
		}
		return tx.Rollback(ctx)
	}
	return w
}

func sqlWorld(t testing.TB) *world {
	_, db, schema := pgSchema(t)
	s, err := postgres.NewSQL(db, postgres.Config{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	w := &world{t: t, store: s}
	sqlWorldOf(w, db, schema+".effects", postgres.SQLTxFromContext)
	return w
}

// log keeps what is logged.
type log struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

// instance is a consumer with a handler, as one process has it.
type instance struct {
	*consumer.Consumer
	w      *world
	log    *log
	events chan consumer.Event
	handle message.HandlerFunc
}

// instance makes one whose handler notes the effect and then does what do says.
func (w *world) instance(cfg consumer.Config, do func(msg *message.Message) ([]*message.Message, error)) *instance {
	w.t.Helper()
	i := &instance{w: w, log: &log{}, events: make(chan consumer.Event, 100_000)}
	cfg.Name = "billing"
	cfg.Logger = slog.New(slog.NewTextHandler(i.log, nil))
	cfg.Hooks.Done = func(_ context.Context, e consumer.Event) { i.events <- e }
	c, err := consumer.New(w.store, cfg)
	require.NoError(w.t, err)
	i.Consumer = c
	i.handle = c.Wrap(func(msg *message.Message) ([]*message.Message, error) {
		if err := w.apply(msg.Context(), msg); err != nil {
			return nil, err
		}
		if do == nil {
			return nil, nil
		}
		return do(msg)
	})
	return i
}

// run runs Run until the test ends.
func (i *instance) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.w.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := i.Run(ctx); err != nil {
			i.w.t.Errorf("Run: %v", err)
		}
	})
	i.w.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// order is message n of an aggregate, as the outbox sends it.
func order(aggregate string, n int64) *message.Message {
	m := message.NewMessage(fmt.Sprintf("%s-%d", aggregate, n), []byte("{}"))
	backends.SetAggregate(m, aggregate)
	backends.SetSequence(m, n)
	m.Metadata.Set(backends.TopicKey, "orders")
	m.Metadata.Set(backends.CreatedAtKey, time.Now().UTC().Format(time.RFC3339Nano))
	return m
}

// deliver hands a message to the handler, as a router does.
func (i *instance) deliver(msg *message.Message) error {
	if msg.Context().Done() == nil {
		msg.SetContext(i.w.t.Context())
	}
	_, err := i.handle(msg)
	return err
}

// gives delivers a message and says what became of it.
func (i *instance) gives(want consumer.Outcome, msg *message.Message) consumer.Event {
	i.w.t.Helper()
	err := i.deliver(msg)
	if want == consumer.Failed {
		require.Error(i.w.t, err)
	} else {
		require.NoError(i.w.t, err)
	}
	for {
		e := i.event()
		if e.FromBuffer {
			continue
		}
		require.Equal(i.w.t, want, e.Outcome)
		return e
	}
}

func (i *instance) event() consumer.Event {
	i.w.t.Helper()
	select {
	case e := <-i.events:
		return e
	case <-time.After(limit):
		require.Fail(i.w.t, "nothing happened")
	}
	return consumer.Event{}
}

// eventually waits for effects.
func (w *world) eventually(want ...string) {
	w.t.Helper()
	var got []string
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if got = w.effects(); len(got) >= len(want) {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	require.Equal(w.t, want, got)
}

func (i *instance) dead() backends.InboxDeadLetters {
	i.w.t.Helper()
	d, ok := i.DeadLetters()
	require.True(i.w.t, ok)
	return d
}
