package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends"
)

// Measure implements [backends.Measurer]. Of other users' transactions the age is
// known only to a member of pg_read_all_stats.
func (s *Store) Measure(ctx context.Context) (backends.Measures, error) {
	var size int64
	var age float64
	err := s.conns.with(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `select pg_total_relation_size($1::text::regclass),
coalesce((select extract(epoch from clock_timestamp() - min(xact_start)) from pg_stat_activity
    where backend_xmin is not null and pid <> pg_backend_pid()), 0)::float8`, s.names.outbox).Scan(&size, &age)
	})
	if err != nil {
		return backends.Measures{}, fmt.Errorf("postgres: measure: %w", mend(err))
	}
	return backends.Measures{TableBytes: size, HorizonAge: max(0, time.Duration(age*float64(time.Second)))}, nil
}
