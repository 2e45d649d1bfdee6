#!/usr/bin/env bash
# Runs each fuzz target for a while: scripts/fuzz.sh [TIME], by default 30s each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for_time=${1:-30s}
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go | while read -r target; do
		printf '%s %s, %s\n' "$dir" "$target" "$for_time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$for_time" "$dir" </dev/null
	done
done
