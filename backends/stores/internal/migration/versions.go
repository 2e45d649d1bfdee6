package migration

import (
	"context"

	"github.com/pressly/goose/v3/database"
)

// versions is the table of applied versions under a name that goose cannot look
// up by itself.
type versions struct {
	database.Store
	exists string
}

// TableExists implements database.StoreExtender.
func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (there bool, err error) {
	err = db.QueryRowContext(ctx, v.exists).Scan(&there)
	return there, err
}
