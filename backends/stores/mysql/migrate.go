package mysql

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/outmill/outmill/backends/stores/internal/migration"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

func (s *Store) migrations() (migration.Set, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	return migration.Set{
		Dialect: goose.DialectMySQL, Files: files, Names: s.names.placeholders(), Table: s.names.migrations,
		Exists: "select count(*) > 0 from information_schema.tables where table_schema = database() and table_name = '" + s.names.migrations + "'",
	}, err
}

const migratePause = 100 * time.Millisecond

// Migrate makes the tables, or brings them to this version. It may be called by
// several programs at once: a lock lets one in at a time. Running it again
// changes nothing, also after one that was cut off half way: MySQL commits each
// table by itself. It needs two connections.
func (s *Store) Migrate(ctx context.Context) error {
	set, err := s.migrations()
	if err != nil {
		return err
	}
	if s.db.Stats().MaxOpenConnections == 1 {
		return errors.New("mysql: migrate: the handle has one connection, two are needed: one of them holds the lock")
	}
	for {
		switch done, err := s.migrate(ctx, set); {
		case err != nil:
			return fmt.Errorf("mysql: migrate: %w", mend(err))
		case done:
			return nil
		}
		// Another program migrates. Waiting in the database would hold a connection,
		// of which there may be too few for the other one to go on.
		select {
		case <-ctx.Done():
			return fmt.Errorf("mysql: migrate: another program holds the lock: %w", context.Cause(ctx))
		case <-time.After(migratePause):
		}
	}
}

// migrate does the work under the lock, or nothing if another has it. The lock is
// a connection's: it goes with it, whatever happens to this program.
func (s *Store) migrate(ctx context.Context, set migration.Set) (done bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	const name = "sha2(concat(coalesce(database(), ''), '.', ?), 224)" // a lock's name has at most 64 characters
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "select get_lock("+name+", 0)", s.names.migrations).Scan(&got); err != nil || got.Int64 != 1 {
		return false, err
	}
	err = set.Up(ctx, s.db)
	_, unlock := conn.ExecContext(context.WithoutCancel(ctx), "do release_lock("+name+")", s.names.migrations)
	return true, errors.Join(err, unlock)
}

// MigrationSQL returns the statements that Migrate would run on an empty
// database, for the user's own migration tool. A database migrated so must also
// hold the version row that the last statements write.
func (s *Store) MigrationSQL() (string, error) {
	set, err := s.migrations()
	if err != nil {
		return "", err
	}
	text, err := set.Print(0)
	if err != nil {
		return "", err
	}
	latest, err := set.Latest()
	if err != nil {
		return "", err
	}
	text += fmt.Sprintf(`
create table if not exists %[1]s (
    id         bigint unsigned not null auto_increment primary key,
    version_id bigint          not null,
    is_applied boolean         not null,
    tstamp     datetime        default current_timestamp
);
insert into %[1]s (version_id, is_applied) values (0, true)`, s.names.migrations)
	for v := range latest {
		text += fmt.Sprintf(", (%d, true)", v+1)
	}
	return text + ";\n", nil
}

// checkVersion compares the version of the tables with this program's.
func (s *Store) checkVersion(ctx context.Context, c *sql.Conn) error {
	set, err := s.migrations()
	if err != nil {
		return err
	}
	var have int64
	if err := c.QueryRowContext(ctx, "select coalesce(max(version_id), 0) from "+s.names.migrations+" where is_applied").Scan(&have); err != nil {
		return fmt.Errorf("read the version of the tables: %w", err)
	}
	if err := set.Compare(have); err != nil {
		return fmt.Errorf("mysql: %w", err)
	}
	return nil
}
