#!/usr/bin/env bash
# A private PostgreSQL cluster on loopback, with logical decoding and prepared transactions.
# usage: postgres.sh [start | stop | status | install | wipe | crash]
# Prints OUTMILL_POSTGRES_ADDR and OUTMILL_POSTGRES_URL.
# `wipe` also drops the data, `crash` kills the server and keeps them.
# OUTMILL_POSTGRES_PORT (15432), OUTMILL_POSTGRES_FROM: host (default: newest
# under /usr/lib/postgresql, else bookworm) or a Debian suite (bookworm = 15,
# trixie = 17, sid = newest), OUTMILL_POSTGRES_ARGS (more options for postgres).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PORT=${OUTMILL_POSTGRES_PORT:-15432}
FROM=${OUTMILL_POSTGRES_FROM:-host}
CRASH=QUIT # ends its children too, and recovers at the next start as from a crash

unprivileged
RUN=$SVC_HOME/run/$SVC-$PORT

install() {
	local dir
	if [ "$FROM" = host ]; then
		dir=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 2>/dev/null | sort -V | tail -n 1)
		[ -n "$dir" ] || FROM=bookworm
	fi
	if [ "$FROM" != host ]; then
		prefix postgres "$FROM" postgresql
		dir=$(find "$PREFIX/usr/lib/postgresql" -mindepth 1 -maxdepth 1)
	fi
	BIN=$dir/bin
}

boot() {
	data_for "$("$BIN/postgres" --version)"
	local home=$RUN/home sock
	mkdir -p "$home"
	sock=$(socket_dir)
	touch "$RUN/init.log"
	[ ${#AS[@]} = 0 ] || chown "$AS_USER" "$home" "$sock" "$RUN/init.log"
	if [ ! -d "$RUN/data" ]; then
		HOME=$home "${AS[@]}" "$BIN/initdb" -D "$home/data" -U postgres -A trust -E UTF8 --locale=C \
			>"$RUN/init.log" 2>&1 || { tail -n 30 "$RUN/init.log" >&2; die "cannot initialise"; }
		mv "$home/data" "$RUN/data"
	fi
	# shellcheck disable=SC2086
	HOME=$home spawn postgres "${AS[@]}" "$BIN/postgres" -D "$RUN/data" -p "$PORT" \
		-c listen_addresses=127.0.0.1 -c unix_socket_directories="$sock" \
		-c wal_level=logical -c max_wal_senders=20 -c max_replication_slots=20 \
		-c max_connections=200 -c max_prepared_transactions=50 \
		-c fsync=on -c jit=off ${OUTMILL_POSTGRES_ARGS:-}
}

ready() { "$BIN/pg_isready" -q -h 127.0.0.1 -p "$PORT" -U postgres -d postgres; }

quit() { halt postgres INT; } # INT: cut the clients off, then stop cleanly

address() {
	echo "OUTMILL_POSTGRES_ADDR=127.0.0.1:$PORT"
	echo "OUTMILL_POSTGRES_URL='postgres://postgres@127.0.0.1:$PORT/postgres?sslmode=disable'"
}

main "$@"
