package matrix

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/internal/testenv"
)

// store is an outbox of the test's own. The program migrates it.
type store struct {
	url         string
	transaction func(ctx context.Context, do func(message.Publisher) error) error
}

var stores = []struct {
	name string
	open func(*testing.T) store
}{
	{"SQLite", openSQLite},
	{"Postgres", openPostgres},
	{"MySQL", func(t *testing.T) store { return openMySQL(t, "mysql", testenv.MySQLDSN) }},
	{"MariaDB", func(t *testing.T) store { return openMySQL(t, "mariadb", testenv.MariaDBDSN) }},
}

func prefix() string { return "m" + strings.ToLower(watermill.NewShortUUID()[:8]) + "_" }

// inSQL is a transaction of database/sql.
func inSQL(db *sql.DB, publisher func(*sql.Tx) message.Publisher) func(context.Context, func(message.Publisher) error) error {
	return func(ctx context.Context, do func(message.Publisher) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after the commit
		if err := do(publisher(tx)); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func openSQLite(t *testing.T) store {
	path := filepath.Join(t.TempDir(), "shop.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return store{"sqlite:" + path, inSQL(s.DB(), func(tx *sql.Tx) message.Publisher { return s.Publisher(tx) })}
}

func openPostgres(t *testing.T) store {
	url := testenv.Server(t, testenv.PostgresURL)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	schema := strings.TrimSuffix(prefix(), "_")
	_, err = pool.Exec(t.Context(), "create schema "+schema)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop schema "+schema+" cascade")
		require.NoError(t, err)
	})
	s, err := postgres.New(pool, postgres.Config{Schema: schema})
	require.NoError(t, err)
	return store{url + "&schema=" + schema, func(ctx context.Context, do func(message.Publisher) error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return do(s.Publisher(tx)) })
	}}
}

func openMySQL(t *testing.T, scheme, variable string) store {
	dsn := testenv.Server(t, variable)
	cfg, err := gomysql.ParseDSN(dsn)
	require.NoError(t, err)
	p := prefix()
	s, err := mysql.Open(t.Context(), dsn, mysql.Config{Prefix: p})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	t.Cleanup(func() { dropTables(t, s.DB(), p) })
	url := fmt.Sprintf("%s://%s:%s@%s/%s?prefix=%s", scheme, cfg.User, cfg.Passwd, cfg.Addr, cfg.DBName, p)
	return store{url, inSQL(s.DB(), func(tx *sql.Tx) message.Publisher { return s.Publisher(tx) })}
}

func dropTables(t *testing.T, db *sql.DB, prefix string) {
	ctx := context.WithoutCancel(t.Context())
	var list sql.NullString
	err := db.QueryRowContext(ctx, "select group_concat(table_name) from information_schema.tables where table_schema = database() and left(table_name, ?) = ?",
		len(prefix), prefix).Scan(&list)
	require.NoError(t, err)
	for name := range strings.SplitSeq(list.String, ",") {
		_, err := db.ExecContext(ctx, "drop table `"+name+"`")
		require.NoError(t, err)
	}
}
