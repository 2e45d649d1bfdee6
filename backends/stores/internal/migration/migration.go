// Package migration applies a store's numbered SQL files, with the names that
// its configuration gives to tables.
package migration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outmill/outmill/backends"
)

// Set is the migrations of one store.
type Set struct {
	Dialect goose.Dialect
	Files   fs.FS             // NNNNN_name.sql in goose's format, at the root
	Names   map[string]string // what is put in place of each placeholder, such as "{{outbox}}"
	Table   string            // the table of applied versions, schema-qualified where the engine needs it

	// Exists asks whether Table is there, for names that goose cannot look up:
	// quoted ones. Empty: goose looks.
	Exists string
}

// Latest is the newest version in the set.
func (s Set) Latest() (int64, error) {
	names, err := fs.Glob(s.Files, "*.sql")
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return 0, errors.New("no migrations embedded")
	}
	return goose.NumericComponent(names[len(names)-1])
}

// Compare says what to do about tables of another version than this program's.
func (s Set) Compare(have int64) error {
	want, err := s.Latest()
	switch {
	case err != nil:
		return err
	case have < want:
		return fmt.Errorf("the tables have version %d, this program needs %d: run Migrate: %w", have, want, backends.ErrSchema)
	case have > want:
		return fmt.Errorf("the tables have version %d, this program knows %d: use a newer program: %w", have, want, backends.ErrSchema)
	}
	return nil
}

// Up applies what is missing. The caller holds whatever lock keeps two of them
// apart. A database of a newer version than the set is left as it is, and that
// is [backends.ErrSchema].
func (s Set) Up(ctx context.Context, db *sql.DB) error {
	p, err := s.provider(db)
	if err != nil {
		return err
	}
	latest, err := s.Latest()
	if err != nil {
		return err
	}
	switch have, err := p.GetDBVersion(ctx); {
	case err != nil:
		return fmt.Errorf("read the version of the tables: %w", err)
	case have > latest:
		return s.Compare(have)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Print returns the statements of every migration above a version, for the
// user's own tool.
func (s Set) Print(above int64) (string, error) {
	files, err := s.rendered()
	if err != nil {
		return "", err
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range names {
		v, err := goose.NumericComponent(name)
		if err != nil {
			return "", err
		}
		if v <= above {
			continue
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		fmt.Fprintf(&b, "-- %s\n%s\n", name, strings.TrimSpace(withoutMarks(up)))
	}
	return b.String(), nil
}

func withoutMarks(sql string) string {
	lines := strings.Split(sql, "\n")
	kept := lines[:0]
	for _, l := range lines {
		if !strings.HasPrefix(strings.TrimSpace(l), "-- +goose") {
			kept = append(kept, l)
		}
	}
	return strings.Join(kept, "\n")
}

func (s Set) provider(db *sql.DB) (*goose.Provider, error) {
	files, err := s.rendered()
	if err != nil {
		return nil, err
	}
	store, err := database.NewStore(s.Dialect, s.Table)
	if err != nil {
		return nil, err
	}
	if s.Exists != "" {
		store = versions{Store: store, exists: s.Exists}
	}
	return goose.NewProvider("", db, files, goose.WithStore(store),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}

// rendered is the files with every placeholder replaced.
func (s Set) rendered() (fs.FS, error) {
	pairs := make([]string, 0, 2*len(s.Names))
	for k, v := range s.Names {
		pairs = append(pairs, k, v)
	}
	r := renderedFS{FS: s.Files, replace: strings.NewReplacer(pairs...)}
	names, err := fs.Glob(s.Files, "*.sql")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(r, name)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(text), "{{") {
			return nil, fmt.Errorf("migration %s: a placeholder has no value", name)
		}
	}
	return r, nil
}
