#!/usr/bin/env bash
# Runs the fuzz targets of the repository beyond their seeds, and writes down how many inputs each was brought and what it found.
#
#   tools/fuzz.sh [DURATION [PATTERN]]      of each target (10s), and which: a regular expression of ./dir.FuzzName
#
#   PROCS=1                 how many workers a target has
#   SUMMARY=fuzz.txt        where a line for each target goes: target, seconds, seconds of CPU, inputs, new ones that were interesting, and ok or FOUND
#   LOCK=FILE               a file that is locked while one target runs, so that others may run between two of them
#   CORPUS=DIR              where interesting inputs are kept from run to run: what `go test -fuzz` keeps, unless told
#
# Each package is built once, and building is not counted. What a target finds is an input in its testdata/fuzz, where it stays as a test when it has been mended.
# It ends with 1 if anything was found.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-${FUZZTIME:-10s}} pattern=${2:-.} summary=$(realpath -m "${SUMMARY:-fuzz.txt}")
corpus=${CORPUS:-$(go env GOCACHE)/fuzz} module=$(go list -m)
found=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

targets() {
	grep -roE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's#^(.*)/[^/]*:func (Fuzz.*)$#\1.\2#' | sort
}

run() { # DIR NAME: what one target says goes to $work/out, how long it took and its CPU to $work/time
	local TIMEFORMAT='%R %U %S'
	{ time fuzz "$@" >"$work/out" 2>&1; } 2>"$work/time"
}

fuzz() (
	cd "$1"
	exec ${LOCK:+flock "$LOCK"} "$work/fuzz" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$duration" -test.fuzzminimizetime 50x \
		-test.fuzzcachedir "$corpus/$module/${1#./}" -test.parallel "${PROCS:-1}"
)

# the end of the time is at times taken for a failure, of no input: golang/go issue 75804, which Go 1.27 mends
timed_out() {
	grep -qx '    context deadline exceeded' "$work/out" && ! grep -q 'Failing input written' "$work/out"
}

built=
for target in $(targets | grep -E -- "$pattern"); do
	dir=${target%.Fuzz*} name=Fuzz${target##*.Fuzz}
	echo "== $target" >&2
	if [ "$built" != "$dir" ]; then go test -c -fuzz . -o "$work/fuzz" "$dir" && built=$dir; fi
	if run "$dir" "$name" || timed_out; then said=ok; else said=FOUND found=1; cat "$work/out" >&2; fi
	last=$(grep -oE 'execs: [0-9]+.*' "$work/out" | tail -1 || true)
	inputs=$(grep -oE '^execs: [0-9]+' <<<"$last" | tr -dc 0-9 || true)
	fresh=$(grep -oE 'new interesting: [0-9]+' <<<"$last" | tr -dc 0-9 || true)
	read -r took cpu < <(tail -1 "$work/time" | awk '{ printf "%.0f %.1f\n", $1, $2 + $3 }')
	printf '%-50s %5ds %7ss of CPU %12s inputs %6s new  %s\n' "$target" "$took" "$cpu" "${inputs:-0}" "${fresh:-0}" "$said" | tee -a "$summary" >&2
done
awk '{ s += $3; n += $6; if ($NF == "FOUND") f++; t[$1] = 1 } END { printf "%d targets, %.2f hours of CPU, %d inputs, %d found something\n", length(t), s / 3600, n, f }' "$summary" >&2
exit $found
