package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector lends connections. What is lent is given back before with returns.
type connector interface {
	with(ctx context.Context, use func(*pgx.Conn) error) error
	database() string // empty: not known
	sqlDB() (db *sql.DB, done func())
	size() int // at most so many connections; 0: no limit
}

type poolConnector struct{ pool *pgxpool.Pool }

func (p poolConnector) with(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return use(conn.Conn())
}

func (p poolConnector) database() string { return p.pool.Config().ConnConfig.Database }

func (p poolConnector) sqlDB() (*sql.DB, func()) {
	db := stdlib.OpenDBFromPool(p.pool)
	return db, func() { _ = db.Close() } // closes the wrapper, not the pool
}

func (p poolConnector) size() int { return int(p.pool.Config().MaxConns) }

type sqlConnector struct {
	db     *sql.DB
	pooler bool
}

func (s sqlConnector) with(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	err = conn.Raw(func(driver any) error {
		c, ok := driver.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("postgres: connections are of type %T: what a forwarder needs takes pgx's own driver: use postgres.Open, or sql.Open(\"pgx\", url)", driver)
		}
		if s.pooler {
			if err := fitsPooler(c.Conn().Config()); err != nil {
				return err
			}
		}
		return use(c.Conn())
	})
	return errors.Join(err, conn.Close())
}

func (sqlConnector) database() string { return "" }

func (s sqlConnector) sqlDB() (*sql.DB, func()) { return s.db, func() {} }

func (s sqlConnector) size() int { return s.db.Stats().MaxOpenConnections }

// fitsPooler refuses what leaves named prepared statements in a session.
func fitsPooler(c *pgx.ConnConfig) error {
	if c.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return nil
	}
	return errors.New("postgres: Pooler is set, but the connections use named prepared statements: " +
		"set DefaultQueryExecMode to pgx.QueryExecModeExec, or default_query_exec_mode=exec in the URL")
}
