package mysql

// names are the quoted names of a store's tables. Backticks quote in every
// sql_mode.
type names struct {
	prefix string

	outbox, sequences, forwarders, shards, parked, dead, archive, state, migrations string
}

func namesOf(prefix string) names {
	table := func(name string) string { return "`" + prefix + name + "`" }
	return names{
		prefix: prefix,
		outbox: table("outbox"), sequences: table("outbox_sequences"), forwarders: table("outbox_forwarders"),
		shards: table("outbox_shards"), parked: table("outbox_parked"), dead: table("outbox_dead"),
		archive: table("outbox_archive"), state: table("outbox_state"),
		migrations: prefix + "outbox_migrations", // goose quotes nothing; the prefix needs none
	}
}

// placeholders are what the migration files are rendered with.
func (n names) placeholders() map[string]string {
	index := func(name string) string { return "`" + n.prefix + name + "`" }
	return map[string]string{
		"{{outbox}}": n.outbox, "{{sequences}}": n.sequences, "{{forwarders}}": n.forwarders,
		"{{shards}}": n.shards, "{{parked}}": n.parked, "{{dead}}": n.dead, "{{archive}}": n.archive,
		"{{state}}":             n.state,
		"{{outbox_id}}":         index("outbox_id"),
		"{{outbox_shard}}":      index("outbox_shard"),
		"{{dead_aggregate}}":    index("outbox_dead_aggregate"),
		"{{archive_delivered}}": index("outbox_archive_delivered"),
	}
}

func (n names) tables() []string {
	return []string{n.outbox, n.sequences, n.forwarders, n.shards, n.parked, n.dead, n.archive, n.state}
}
