package memory

import "context"

// Migrate does nothing. It is there so that this store can stand in for another.
func (s *Store) Migrate(ctx context.Context) error { return ctx.Err() }

// MigrationSQL is empty, for the same reason.
func (s *Store) MigrationSQL() (string, error) { return "", nil }

// Close does nothing, for the same reason.
func (s *Store) Close() error { return nil }
