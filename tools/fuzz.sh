#!/usr/bin/env bash
# Runs every fuzz target of the repository for FUZZTIME (default 10s) beyond its seeds.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
	dir=$(dirname "$file")
	grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | sed 's/^func //' | while read -r target; do
		echo "== $dir $target" >&2
		go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}"
	done
done
