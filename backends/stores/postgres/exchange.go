package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// exchange runs a transaction in one round trip: begin, the statements of the
// batch, commit. The batch's own callbacks take the answers. Nothing is left
// open: after an error the transaction is rolled back, and where that fails the
// pool drops the connection.
func exchange(ctx context.Context, c *pgx.Conn, begin string, fill func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	b.Queue(begin)
	fill(b)
	b.Queue(commit)
	err := c.SendBatch(ctx, b).Close()
	if err != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
		// The first error is the one to report.
		_, _ = c.Exec(ctx, rollback)
	}
	return err
}
