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
	database() string
	sqlDB() (db *sql.DB, done func())
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

type sqlConnector struct{ db *sql.DB }

func (s sqlConnector) with(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	err = conn.Raw(func(driver any) error {
		c, ok := driver.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("postgres: the database/sql driver gives connections of type %T, pgx's stdlib driver is needed", driver)
		}
		return use(c.Conn())
	})
	return errors.Join(err, conn.Close())
}

func (sqlConnector) database() string { return "" }

func (s sqlConnector) sqlDB() (*sql.DB, func()) { return s.db, func() {} }
