#!/usr/bin/env bash
# Runs the fuzz targets of the repository beyond their seeds, and writes down how many inputs each was brought and what it found.
#
#   tools/fuzz.sh [DURATION [PATTERN]]      of each target (10s), and which: a regular expression of ./dir.FuzzName
#
#   PROCS=1                 how many workers a target has
#   SUMMARY=fuzz.txt        where a line for each target goes: target, seconds, inputs, new ones that were interesting, and ok or FOUND
#   LOCK=FILE               a file that is locked while one target runs, so that others may run between two of them
#
# What a target finds is an input in its testdata/fuzz, where it stays as a test when it has been mended. It ends with 1 if anything was found.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-${FUZZTIME:-10s}} pattern=${2:-.} summary=${SUMMARY:-fuzz.txt}
found=0

targets() {
	grep -roE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's#^(.*)/[^/]*:func (Fuzz.*)$#\1.\2#' | sort
}

for target in $(targets | grep -E -- "$pattern"); do
	dir=${target%.Fuzz*} name=Fuzz${target##*.Fuzz}
	echo "== $target" >&2
	began=$SECONDS
	if out=$(${LOCK:+flock "$LOCK"} go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "$duration" -fuzzminimizetime 50x -parallel "${PROCS:-1}" 2>&1); then said=ok; else said=FOUND found=1; echo "$out" >&2; fi
	last=$(grep -oE 'execs: [0-9]+.*' <<<"$out" | tail -1 || true)
	inputs=$(grep -oE '^execs: [0-9]+' <<<"$last" | tr -dc 0-9 || true)
	fresh=$(grep -oE 'new interesting: [0-9]+' <<<"$last" | tr -dc 0-9 || true)
	printf '%-50s %5ds %12s inputs %6s new  %s\n' "$target" $((SECONDS - began)) "${inputs:-0}" "${fresh:-0}" "$said" | tee -a "$summary" >&2
done
awk '{ s += $2; n += $3; if ($NF == "FOUND") f++ } END { printf "%d targets, %.2f hours, %d inputs, %d found something\n", NR, s / 3600, n, f }' "$summary" >&2
exit $found
