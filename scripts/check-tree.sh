#!/usr/bin/env bash
# Rules of the tree that no linter knows: prints what breaks them and fails.
#   - a Go file has at most 400 lines
#   - the root holds no Go file: everything is imported by the name of its folder
#   - only internal/testenv skips a test, so that a missing server cannot hide one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

ceiling=400
failed=0
broken() {
	printf '%s\n' "$*" >&2
	failed=1
}

# New files count too, as long as git does not ignore them.
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.go' | sort -u)
for file in "${files[@]}"; do
	[ -f "$file" ] || continue # deleted, not yet committed
	lines=$(wc -l <"$file")
	[ "$lines" -le "$ceiling" ] || broken "$file: $lines lines, the ceiling is $ceiling: split it by concern"
	case $file in
	*/*) ;;
	*) broken "$file: no Go files in the root" ;;
	esac
	case $file in internal/testenv/*) continue ;; esac
	while IFS= read -r hit; do
		broken "$file:$hit: only internal/testenv may skip a test"
	done < <(grep -nE '\b[tbf]\.(Skip|Skipf|SkipNow)\(' "$file" | grep -vE '^[0-9]+:[[:space:]]*//' | cut -c -80)
done
exit "$failed"
