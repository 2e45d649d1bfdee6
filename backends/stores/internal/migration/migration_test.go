package migration_test

import (
	"context"
	"database/sql"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/migration"
)

var (
	first  = &fstest.MapFile{Data: []byte("-- +goose Up\n-- What it is for.\ncreate table {{things}} (n integer);\ninsert into {{things}} values (1);\n\n-- +goose Down\ndrop table {{things}};\n")}
	second = &fstest.MapFile{Data: []byte("-- +goose Up\n-- +goose StatementBegin\ninsert into {{things}} values (2);\n-- +goose StatementEnd\n")}
)

// set has as many migrations as asked for.
func set(n int) migration.Set {
	files := fstest.MapFS{"00001_first.sql": first, "00002_second.sql": second}
	if n == 1 {
		delete(files, "00002_second.sql")
	}
	return migration.Set{
		Dialect: goose.DialectSQLite3, Files: files, Table: "shop_versions",
		Names: map[string]string{"{{things}}": `"shop things"`},
	}
}

func open(t *testing.T) *sql.DB {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "test.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func sum(t *testing.T, db *sql.DB) (n int) {
	require.NoError(t, db.QueryRowContext(t.Context(), `select sum(n) from "shop things"`).Scan(&n))
	return n
}

func TestUp_AgainChangesNothing(t *testing.T) {
	db := open(t)
	for range 3 {
		require.NoError(t, set(2).Up(t.Context(), db))
		require.Equal(t, 3, sum(t, db))
	}
}

func TestUp_AppliesOnlyWhatIsMissing(t *testing.T) {
	db := open(t)
	require.NoError(t, set(1).Up(t.Context(), db))
	require.Equal(t, 1, sum(t, db))
	require.NoError(t, set(2).Up(t.Context(), db))
	require.Equal(t, 3, sum(t, db))
}

func TestUp_LeavesANewerDatabaseAlone(t *testing.T) {
	db := open(t)
	require.NoError(t, set(2).Up(t.Context(), db))
	err := set(1).Up(t.Context(), db)
	require.ErrorIs(t, err, backends.ErrSchema)
	require.ErrorContains(t, err, "use a newer program")
	require.Equal(t, 3, sum(t, db))
}

func TestUp_ACancelledContextLeavesNothingHalfDone(t *testing.T) {
	db := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, set(2).Up(ctx, db), context.Canceled)
	require.NoError(t, set(2).Up(t.Context(), db))
	require.Equal(t, 3, sum(t, db))
}

func TestCompare_SaysWhatToDo(t *testing.T) {
	require.NoError(t, set(2).Compare(2))
	for have, remedy := range map[int64]string{0: "run Migrate", 1: "run Migrate", 3: "use a newer program"} {
		err := set(2).Compare(have)
		require.ErrorIs(t, err, backends.ErrSchema)
		require.ErrorContains(t, err, remedy)
	}
}

func TestPrint_IsForAnyTool(t *testing.T) {
	text, err := set(2).Print(0)
	require.NoError(t, err)
	require.Equal(t, `-- 00001_first.sql
-- What it is for.
create table "shop things" (n integer);
insert into "shop things" values (1);
-- 00002_second.sql
insert into "shop things" values (2);
`, text)
	db := open(t)
	_, err = db.ExecContext(t.Context(), text)
	require.NoError(t, err)
	require.Equal(t, 3, sum(t, db))
}

func TestPrint_OnlyAboveAVersion(t *testing.T) {
	text, err := set(2).Print(1)
	require.NoError(t, err)
	require.Equal(t, "-- 00002_second.sql\ninsert into \"shop things\" values (2);\n", text)
	text, err = set(2).Print(2)
	require.NoError(t, err)
	require.Empty(t, text)
}

func TestSet_APlaceholderWithoutAValueIsAnError(t *testing.T) {
	s := set(2)
	s.Names = map[string]string{"{{others}}": "x"}
	_, err := s.Print(0)
	require.EqualError(t, err, "migration 00001_first.sql: a placeholder has no value")
	require.EqualError(t, s.Up(t.Context(), open(t)), err.Error())
}

func TestSet_WithoutFilesIsAnError(t *testing.T) {
	s := migration.Set{Dialect: goose.DialectSQLite3, Files: fstest.MapFS{}, Table: "versions"}
	_, err := s.Latest()
	require.ErrorContains(t, err, "no migrations embedded")
	require.Error(t, s.Up(t.Context(), open(t)))
}

// A reader that trusts the size must get the whole text.
func TestSet_ShowsFilesOfTheirNewSize(t *testing.T) {
	files := migration.Rendered(set(2).Files, map[string]string{"{{things}}": "a much longer name than before"})
	info, err := fs.Stat(files, "00002_second.sql")
	require.NoError(t, err)
	text, err := fs.ReadFile(files, "00002_second.sql")
	require.NoError(t, err)
	require.EqualValues(t, len(text), info.Size())
	require.Contains(t, string(text), "a much longer name than before")
}
