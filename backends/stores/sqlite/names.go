package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/inboxes"
	"github.com/outmill/outmill/backends/stores/internal/migration"
)

// names are the quoted names of a store's tables.
type names struct {
	prefix string

	outbox, sequences, forwarders, shards, parked, dead, archive, changes, migrations string

	inbox inboxes.Tables
}

func namesOf(prefix string) names {
	table := func(name string) string { return `"` + prefix + name + `"` }
	return names{
		prefix: prefix,
		outbox: table("outbox"), sequences: table("outbox_sequences"), forwarders: table("outbox_forwarders"),
		shards: table("outbox_shards"), parked: table("outbox_parked"), dead: table("outbox_dead"),
		archive: table("outbox_archive"), changes: table("outbox_changes"),
		migrations: prefix + "outbox_migrations", // goose quotes nothing; the prefix needs none
		inbox: inboxes.Tables{
			Inbox: table("inbox"), Sequences: table("inbox_sequences"), Buffer: table("inbox_buffer"),
			Dead: table("inbox_dead"), Failures: table("inbox_failures"), Skipped: table("inbox_skipped"),
		},
	}
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

func (s *Store) migrations() (migration.Set, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	index := func(name string) string { return `"` + s.names.prefix + name + `"` }
	n := s.names
	names := n.inbox.Placeholders(index)
	maps.Copy(names, map[string]string{
		"{{outbox}}": n.outbox, "{{sequences}}": n.sequences, "{{forwarders}}": n.forwarders, "{{shards}}": n.shards,
		"{{parked}}": n.parked, "{{dead}}": n.dead, "{{archive}}": n.archive, "{{changes}}": n.changes,
		"{{outbox_shard}}":      index("outbox_shard"),
		"{{outbox_delayed}}":    index("outbox_delayed"),
		"{{dead_aggregate}}":    index("outbox_dead_aggregate"),
		"{{archive_delivered}}": index("outbox_archive_delivered"),
	})
	return migration.Set{Dialect: goose.DialectSQLite3, Files: files, Table: n.migrations, Names: names}, err
}

// migrateTries is how often Migrate looks again after another process was faster.
const migrateTries = 5

// Migrate makes the tables, or brings them to this version. Running it again
// changes nothing, and several processes may run it at once:
//
// 1. Two find that there are no tables.
// 2. One makes them in a transaction; the other waits for the lock, and fails
// since they are there.
// 3. It looks again, and finds nothing to do.
func (s *Store) Migrate(ctx context.Context) error {
	set, err := s.migrations()
	if err != nil {
		return err
	}
	for range migrateTries {
		if err = set.Up(ctx, s.db); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("sqlite: %w", mend(err))
	}
	return nil
}

// MigrationSQL returns the statements that Migrate would run on an empty
// database, for the user's own migration tool.
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
	return text + fmt.Sprintf(`
create table if not exists %[1]s (
    id         integer primary key autoincrement,
    version_id integer not null,
    is_applied integer not null,
    tstamp     timestamp default (datetime('now'))
);
insert into %[1]s (version_id, is_applied)
with recursive v(n) as (select 0 union all select n + 1 from v where n < %[2]d) select n, 1 from v;
`, s.names.migrations, latest), nil
}

// mend says what a database error means here and what to do about it.
func mend(err error) error {
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrConnDone):
		return fmt.Errorf("sqlite: %w: publish before the commit", backends.ErrTransactionDone)
	case !errors.As(err, &e):
		return err
	}
	if e.Code() == sqlite3.SQLITE_BUSY_SNAPSHOT {
		return fmt.Errorf("sqlite: another transaction has written since this one began with a read, and no wait helps: roll back, and open the database with _txlock=immediate: %w", err)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("sqlite: another transaction held the write lock for longer than busy_timeout: keep transactions short: %w", err)
	case sqlite3.SQLITE_READONLY:
		return fmt.Errorf("sqlite: the database is read-only: %w", err)
	case sqlite3.SQLITE_ERROR:
		if text := e.Error(); strings.Contains(text, "no such table") || strings.Contains(text, "no such column") || strings.Contains(text, "has no column") {
			return fmt.Errorf("sqlite: %w: run Migrate, and check Prefix and the path: %w", backends.ErrSchema, err)
		}
	}
	return err
}
