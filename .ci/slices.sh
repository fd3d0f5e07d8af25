#!/usr/bin/env bash
# A slice of each of the long checks, another one with each commit: all of them run with `make nightly`.
# usage: .ci/slices.sh [SEED]     SEED is the commit's number unless it is given
set -euo pipefail
cd "$(dirname "$0")/.."

seed=$((16#${1:-$(git rev-parse --short=7 HEAD 2>/dev/null || date +%j)}))
pick() { # COUNT: so many of the lines of stdin, by the seed
	local lines n
	mapfile -t lines
	n=${#lines[@]}
	for ((i = 0; i < $1 && i < n; i++)); do echo "${lines[$(((seed + i * (n / $1 + 1)) % n))]}"; done
}
expression() { printf '^(%s)$' "$(paste -sd '|' -)"; } # of the lines of stdin
names() { ls "$1" | sed 's/\.txt$//'; }

# those that tests of a package find: the swarm takes minutes
mutants=$(grep -l "^package:" chaos/mutants/planted/* | sed "s#.*/##; s/\.txt$//" | pick 2 | expression)
pieces=$(names chaos/museum/pieces | pick 2)
targets=$(grep -roE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's#^(.*)/[^/]*:func (Fuzz.*)$#\1.\2#' | sort | pick 3 | expression)
set -x
go run ./chaos/bugs mutants --only "$mutants"
for piece in $pieces; do go run ./chaos/bugs museum "$piece" --run; done
SUMMARY=$(mktemp) bash tools/fuzz.sh 5s "$targets"
case $((seed % 4)) in
0) EBB_UPGRADE=HEAD~1 go test ./cmd/ebb -run 'TestRollingUpgrade' -count 1 -timeout 20m ;;
1) EBB_FAILOVER_RUNS=2 go test ./cmd/ebb -run 'Failover' -count 1 -timeout 20m ;;
2) # 7: late, and nothing was lost
	go build -o .bin/ebb ./cmd/ebb
	.bin/ebb chaos proc --cycles 6 --faults kill-all,power-all,full-disks --seeds "$((seed % 1000 + 1))" || [ $? -eq 7 ]
	;;
3)
	make ebb-replay
	stories=$(mktemp -d)
	# the line of the summary says how long it took
	for i in 1 2; do ./ebb-replay chaos sim --seeds "$((seed % 1000 + 1))" --story | grep -v ' seeds/s' >"$stories/$i"; done
	cmp "$stories/1" "$stories/2"
	;;
esac
