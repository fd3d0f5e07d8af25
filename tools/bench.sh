#!/usr/bin/env bash
# Runs the benchmarks of the pure packages COUNT times (default 6), keeps the result in docs/benchmarks as DATE-COMMIT.txt, and
# compares it with the newest one there. BENCH names others than all of PACKAGES. The figures are those of this machine, now: run it
# on a quiet one (the first line says how quiet it was), and compare with what the same machine wrote.
set -euo pipefail
cd "$(dirname "$0")/.."
history=docs/benchmarks
mkdir -p "$history"
last=$(find "$history" -name '*.txt' | sort | tail -n 1)
now=$history/$(date -u +%Y-%m-%dT%H%M)-$(git rev-parse --short HEAD).txt
echo "load: $(cut -d' ' -f1-3 /proc/loadavg)" >"$now.part"
# shellcheck disable=SC2086
go test ${PACKAGES:-./sketch ./shard} -run '^$' -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-0.3s}" -count "${COUNT:-6}" -timeout 60m | tee -a "$now.part" >&2
mv "$now.part" "$now"
go tool -modfile=tools/go.mod benchstat -ignore load ${last:+"$last"} "$now"
