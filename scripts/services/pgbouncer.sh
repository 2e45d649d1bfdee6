#!/usr/bin/env bash
# PgBouncer on loopback, from Debian, pooling by transaction in front of postgres.sh's server.
# usage: pgbouncer.sh [start | stop | status | install | wipe | crash]
# Prints OUTMILL_PGBOUNCER_ADDR and OUTMILL_PGBOUNCER_URL.
# OUTMILL_PGBOUNCER_PORT (16432), OUTMILL_PGBOUNCER_SUITE (trixie = 1.24),
# OUTMILL_PGBOUNCER_POOL (50: sessions for each database, at most), OUTMILL_POSTGRES_PORT
# (15432: the server behind it, which may start later), OUTMILL_PGBOUNCER_ARGS (more options).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PORT=${OUTMILL_PGBOUNCER_PORT:-16432}
SERVER=${OUTMILL_POSTGRES_PORT:-15432}
POOL=${OUTMILL_PGBOUNCER_POOL:-50}
SETTINGS="$SERVER $POOL"
unprivileged
RUN=$SVC_HOME/run/$SVC-$PORT

install() { prefix pgbouncer "${OUTMILL_PGBOUNCER_SUITE:-trixie}" pgbouncer; }

# conf: each transaction goes to the next of at least four sessions and named prepared
# statements get no help, so that whatever relies on a session fails. The upper limit is
# high: tests that hold one transaction and wait for a second would block each other.
conf() {
	cat <<-EOT
		[databases]
		* = host=127.0.0.1 port=$SERVER
		[pgbouncer]
		listen_addr = 127.0.0.1
		listen_port = $PORT
		unix_socket_dir =
		auth_type = trust
		auth_file = $RUN/users
		admin_users = postgres
		pool_mode = transaction
		default_pool_size = $POOL
		min_pool_size = 4
		server_round_robin = 1
		query_wait_timeout = 30
		max_prepared_statements = 0
		max_client_conn = 1000
		server_idle_timeout = 30
		ignore_startup_parameters = extra_float_digits
		log_connections = 0
		log_disconnections = 0
	EOT
}

boot() {
	conf >"$RUN/pgbouncer.ini"
	echo '"postgres" ""' >"$RUN/users"
	# shellcheck disable=SC2086
	spawn pgbouncer "${AS[@]}" "$(find "$PREFIX/usr" -type f -name pgbouncer -perm -u+x)" \
		${OUTMILL_PGBOUNCER_ARGS:-} "$RUN/pgbouncer.ini"
}

# An SSL request, which it answers with no.
ready() { answers "$PORT" '\0\0\0\010\004\322\026\057' N; }

quit() { halt pgbouncer QUIT; } # QUIT: at once; TERM would wait for the clients to leave

address() {
	echo "OUTMILL_PGBOUNCER_ADDR=127.0.0.1:$PORT"
	echo "OUTMILL_PGBOUNCER_URL='postgres://postgres@127.0.0.1:$PORT/postgres?sslmode=disable'"
}

main "$@"
