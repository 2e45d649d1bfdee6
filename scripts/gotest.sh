#!/usr/bin/env bash
# go test -race that says what it left out.
# usage: gotest.sh ARGS...          as for go test; the rest is as without this script, but
# that passing tests print nothing and skipped ones are counted at the end, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go test -race -v "$@" 2>&1 | awk '
	# Lines of a package are held back until its result is known.
	function flush(show,   i) {
		if (show) for (i = 1; i <= n; i++) print held[i]
		n = 0
	}
	/^ok[ \t]/ { flush(0); print; fflush(); next }
	/^\?[ \t]/ { flush(0); next }
	/^FAIL[ \t]/ { flush(1); print; fflush(); next }
	/^(FAIL|PASS)$/ { next }
	/^=== (RUN|PAUSE|CONT|NAME) / { next }
	/^[ \t]*--- PASS: / { next }
	/^[ \t]*--- SKIP: / { skipped++; next }
	/: needs a server: / {
		sub(/^.*needs a server: /, "")
		sub(/ \(.*$/, "")
		why[$0]++
		next
	}
	{ held[++n] = $0 }
	END {
		flush(1)
		if (skipped) {
			printf "\nSKIPPED: %d tests did not run\n", skipped
			for (reason in why) printf "  %4d  %s\n", why[reason], reason
		} else print "\nskipped: none"
	}'
