#!/usr/bin/env bash
# Several services at once.
# usage: all.sh [start | stop | status | install | wipe] [SERVICE...]
# `start` prints the shell assignments of all on stdout, for
#   set -a; eval "$(scripts/services/all.sh)"; set +a
# Services are the names of the other scripts here. Default: those that the tests need.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command=start
if [ $# -gt 0 ]; then
	command=$1
	shift
fi
case $command in
start | stop | status | install | wipe) ;;
*)
	echo "usage: $0 [start | stop | status | install | wipe] [SERVICE...]" >&2
	exit 2
	;;
esac
[ $# -gt 0 ] || set -- postgres kafka pgbouncer toxiproxy

for name in "$@"; do
	if [ ! -x "$here/$name.sh" ] || [ "$name" = all ]; then
		echo "all: no such service: $name" >&2
		exit 2
	fi
done

# Side by side; what they print is kept apart and shown in the order asked for.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
pids=()
for name in "$@"; do
	"$here/$name.sh" "$command" >"$out/$name" </dev/null &
	pids+=("$!")
done
failed=()
for name in "$@"; do
	wait "${pids[0]}" || failed+=("$name")
	pids=("${pids[@]:1}")
done
for name in "$@"; do cat "$out/$name"; done
if [ ${#failed[@]} -gt 0 ]; then
	[ "$command" = status ] || echo "all: $command failed: ${failed[*]}" >&2
	exit 1
fi
