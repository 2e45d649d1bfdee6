#!/usr/bin/env bash
# golangci-lint at the project's version, built on first use.
# usage: lint.sh ARGS...            such as `run ./...` or `fmt`
# It is kept outside the tree and outside go.mod, whose requirements reach our users:
# ${XDG_CACHE_HOME:-~/.cache}/outmill-tools/VERSION.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=v2.15.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/outmill-tools/$version
# One build at a time; the folder gets the program only when it is whole.
if [ ! -x "$dir/golangci-lint" ]; then
	mkdir -p "$dir"
	(
		flock 9
		[ ! -x "$dir/golangci-lint" ] || exit 0
		echo "lint: building golangci-lint $version (about a minute, once)" >&2
		tmp=$(mktemp -d "$dir/build.XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		cd "$tmp"
		GOBIN=$tmp GOFLAGS='' GOWORK=off CGO_ENABLED=0 \
			go install -trimpath -ldflags=-s "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version" \
			>"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; exit 1; }
		mv "$tmp/golangci-lint" "$dir/golangci-lint"
	) 9>"$dir/lock"
fi
exec "$dir/golangci-lint" "$@"
