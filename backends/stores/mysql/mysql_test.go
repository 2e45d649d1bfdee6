package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/backends/storetest"
	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engines are the servers that every test runs on.
var engines = map[string]string{"MySQL": testenv.MySQLDSN, "MariaDB": testenv.MariaDBDSN}

// onEngines runs a test on each, with a database of its own.
func onEngines(t *testing.T, run func(t *testing.T, dsn *driver.Config)) {
	for name, variable := range engines {
		t.Run(name, func(t *testing.T) { run(t, database(t, variable, "")) })
	}
}

// database makes a database with a random name, and drops it in the end.
func database(t testing.TB, variable, options string) *driver.Config {
	t.Helper()
	cfg, err := driver.ParseDSN(testenv.Server(t, variable))
	require.NoError(t, err)
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	name := "test_" + strings.ToLower(rand.Text())
	_, err = admin.ExecContext(t.Context(), "create database "+name+" "+options)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.WithoutCancel(t.Context()), "drop database "+name)
		require.NoError(t, err)
		require.NoError(t, admin.Close())
	})
	cfg.DBName = name
	return cfg
}

func open(t testing.TB, dsn *driver.Config, cfg mysql.Config) *mysql.Store {
	t.Helper()
	s, err := mysql.Open(t.Context(), dsn.FormatDSN(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context()))
	return s
}

// with is a data source with more parameters.
func with(dsn *driver.Config, params map[string]string) *driver.Config {
	c := dsn.Clone()
	c.Params = params
	return c
}

// store is a store as the suite takes it.
type store struct {
	*mysql.Store
	level sql.IsolationLevel // of business transactions
}

func (s store) Outbox() backends.Outbox { return s.Store }

func (s store) Begin(ctx context.Context) (storetest.Tx, error) {
	t, err := s.DB().BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: s.level})
	return tx{t, s.Store}, err
}

type tx struct {
	*sql.Tx
	store *mysql.Store
}

func (t tx) Publisher() message.Publisher   { return t.store.Publisher(t.Tx) }
func (t tx) Commit(context.Context) error   { return t.Tx.Commit() }
func (t tx) Rollback(context.Context) error { return t.Tx.Rollback() }

// TestStore runs the suite as most programs would have it: the driver's and the
// server's defaults, REPEATABLE READ.
func TestStore(t *testing.T) {
	for name, variable := range engines {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB) storetest.Store {
				return store{open(t, database(t, variable, ""), mysql.Config{}), sql.LevelDefault}
			})
		})
	}
}

// TestStore_Unusual runs the suite with a prefix and an archive, in a database and
// over connections set up as oddly as can be, in READ COMMITTED.
func TestStore_Unusual(t *testing.T) {
	for name, variable := range engines {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB) storetest.Store {
				dsn := with(database(t, variable, "character set latin1 collate latin1_general_ci"), map[string]string{
					"sql_mode":  "'TRADITIONAL,ANSI,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY'",
					"time_zone": "'-11:30'",
				})
				dsn.ParseTime, dsn.ClientFoundRows, dsn.Collation = true, true, "latin1_swedish_ci"
				dsn.InterpolateParams = name == "MariaDB"
				return store{open(t, dsn, mysql.Config{Prefix: "shop_", Retention: 1}), sql.LevelReadCommitted}
			})
		})
	}
}

func msg(aggregate, payload string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(payload))
	if aggregate != "" {
		backends.SetAggregate(m, aggregate)
	}
	return m
}

// publish appends in a transaction of its own.
func publish(ctx context.Context, s *mysql.Store, topic string, msgs ...*message.Message) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.Publisher(tx).Publish(topic, msgs...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
