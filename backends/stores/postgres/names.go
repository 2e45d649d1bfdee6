package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/outmill/outmill/backends/stores/internal/inboxes"
)

// names are the quoted, qualified names of a store's tables.
type names struct {
	outbox, sequences, forwarders, shards, parked, dead, archive, incarnation, migrations string

	inbox inboxes.Tables

	lock string // what heartbeats and migrations lock: the outbox's own name
}

func namesOf(cfg Config) names {
	table := func(name string) string {
		id := pgx.Identifier{cfg.Prefix + name}
		if cfg.Schema != "" {
			id = pgx.Identifier{cfg.Schema, cfg.Prefix + name}
		}
		return id.Sanitize()
	}
	return names{
		outbox: table("outbox"), sequences: table("outbox_sequences"), forwarders: table("outbox_forwarders"),
		shards: table("outbox_shards"), parked: table("outbox_parked"), dead: table("outbox_dead"),
		archive: table("outbox_archive"), incarnation: table("outbox_incarnation"),
		migrations: table("outbox_migrations"),
		inbox: inboxes.Tables{
			Inbox: table("inbox"), Sequences: table("inbox_sequences"), Buffer: table("inbox_buffer"),
			Dead: table("inbox_dead"), Failures: table("inbox_failures"), Skipped: table("inbox_skipped"),
		},
		lock: cfg.Schema + "." + cfg.Prefix + "outbox",
	}
}

// placeholders are what the migration files are rendered with.
func (n names) placeholders(cfg Config) map[string]string {
	index := func(name string) string { return pgx.Identifier{cfg.Prefix + name}.Sanitize() }
	out := map[string]string{
		"{{outbox}}": n.outbox, "{{sequences}}": n.sequences, "{{forwarders}}": n.forwarders,
		"{{shards}}": n.shards, "{{parked}}": n.parked, "{{dead}}": n.dead, "{{archive}}": n.archive,
		"{{incarnation}}":       n.incarnation,
		"{{outbox_xid}}":        index("outbox_xid"),
		"{{outbox_delayed}}":    index("outbox_delayed"),
		"{{dead_aggregate}}":    index("outbox_dead_aggregate"),
		"{{archive_delivered}}": index("outbox_archive_delivered"),
	}
	for k, v := range n.inbox.Placeholders(index) {
		out[k] = v
	}
	return out
}
