#!/usr/bin/env bash
# Runs every long check to its end, one after the other, and writes down what came of each, with the commit and the date,
# between two marks of docs/nightly.md. It continues after a check that fails, and then exits with 1.
#
#   tools/nightly.sh [PATTERN]      only the checks whose names match: a regular expression
set -uo pipefail
cd "$(dirname "$0")/.."
page=docs/nightly.md logs=${LOGS:-$(mktemp -d)} pattern=${1:-.} failed=0
commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "commit first: the record names a commit" >&2; exit 1; }

note() { # NAME COMMAND VERDICT SECONDS FIGURE: replaces the line of NAME
	local line
	line=$(printf '| %s | `%s` | %s | %s | %d min %d s | %s | %s |' "$1" "${2//|/\\|}" "$commit" "$(date -u +%F)" $(($4 / 60)) $(($4 % 60)) "$3" "${5//|/\\|}")
	NAME="| $1 |" LINE="$line" awk 'index($0, ENVIRON["NAME"]) == 1 { $0 = ENVIRON["LINE"] } { print }' "$page" >"$page.tmp" && mv "$page.tmp" "$page"
}

check() { # NAME COMMAND: the last line of what it says is the figure
	[[ $1 =~ $pattern ]] || return 0
	printf '== %s: %s\n' "$1" "$2" >&2
	local from=$SECONDS verdict=passed
	bash -o pipefail -c "$2" >"$logs/$1" 2>&1 || { verdict=FAILED failed=1; tail -n 30 "$logs/$1" >&2; }
	note "$1" "$2" "$verdict" $((SECONDS - from)) "$(grep -vE '^\s*$|^(ok|FAIL|PASS|make)' "$logs/$1" | tail -n 1 | cut -c1-160)"
}

grep -oE '^\| [a-z-]+ \| `[^`]+`' "$page" | sed -E 's/^\| ([a-z-]+) \| `([^`]+)`$/\1\t\2/; s/\\\|/|/g' >"$logs/list"
while IFS=$'\t' read -r name command <&3; do check "$name" "$command"; done 3<"$logs/list"
echo "what each said is in $logs" >&2
exit $failed
