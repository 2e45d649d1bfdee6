package mysql_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/mysql"
)

// between is a driver that calls after each statement that reads the outbox.
type between struct {
	sqldriver.Connector
	after func()
}

func (b *between) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := b.Connector.Connect(ctx)
	return &betweenConn{c, b}, err
}

type betweenConn struct {
	sqldriver.Conn
	of *between
}

func (c *betweenConn) BeginTx(ctx context.Context, o sqldriver.TxOptions) (sqldriver.Tx, error) {
	return c.Conn.(sqldriver.ConnBeginTx).BeginTx(ctx, o)
}

func (c *betweenConn) ExecContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, text, args)
}

func (c *betweenConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	rows, err := c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, text, args)
	if err == nil && strings.Contains(text, "limit") && c.of.after != nil {
		return &betweenRows{rows, c.of.after}, nil
	}
	return rows, err
}

type betweenRows struct {
	sqldriver.Rows
	after func()
}

func (r *betweenRows) Close() error {
	err := r.Rows.Close()
	r.after()
	return err
}

// 1. A transaction has appended "first" and is open; others of the shard are read.
// 2. Between two statements of the read it commits, and "second" follows.
// 3. The second statement goes on above "first": it must not see "second" either.
func TestRead_SeesOneSnapshot(t *testing.T) {
	onEngines(t, func(t *testing.T, dsn *driver.Config) {
		s := open(t, dsn, mysql.Config{})
		connector, err := driver.NewConnector(dsn)
		require.NoError(t, err)
		hooked := &between{Connector: connector}
		db := sql.OpenDB(hooked)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		box, err := mysql.New(db, mysql.Config{})
		require.NoError(t, err)
		lease, err := box.Lease(t.Context(), "a", time.Hour)
		require.NoError(t, err)

		late := begin(t, s, sql.LevelDefault)
		require.NoError(t, s.Publisher(late).Publish("t", msg("x", "first")))
		require.NoError(t, publish(t.Context(), s, "u", msg("x", "1"), msg("x", "2"), msg("x", "3")))
		statements := 0
		hooked.after = func() {
			if statements++; statements == 4 { // of 64 shards, 16 in each
				require.NoError(t, late.Commit())
				require.NoError(t, publish(t.Context(), s, "t", msg("x", "second")))
			}
		}
		reader := box.Reader()
		var got []string
		for range 10 {
			part, err := reader.Read(t.Context(), lease, backends.Want{Limit: 64})
			require.NoError(t, err)
			require.NoError(t, reader.Settle(t.Context(), lease, deliveries(part)))
			for _, r := range part {
				if r.Topic == "t" {
					got = append(got, string(r.Payload))
				}
			}
		}
		require.Greater(t, statements, 5)
		require.Equal(t, []string{"first", "second"}, got)
	})
}
