#!/usr/bin/env bash
# Runs the golden tests of sketch as every machine that we promise the same bytes on: amd64 v1 and v3, with fused
# multiply-add switched off at run time, and arm64 (natively, or under qemu-aarch64-static from the package qemu-user-static).
# It also reads the compiled code.
# Nothing is skipped: what cannot run fails. Run it on linux/amd64 or linux/arm64.
set -euo pipefail
cd "$(dirname "$0")/../sketch"
tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT

# build NAME ENV...: a test binary for that machine
build() {
	local name=$1
	shift
	env CGO_ENABLED=0 GOOS=linux "$@" go test -c -o "$tests/$name" .
}

# run LABEL COMMAND...: from the package's folder, where testdata is
run() {
	local label=$1
	shift
	printf '%-24s ' "$label"
	"$@" -test.run '^TestGolden' -test.v | grep -E '^ +golden_test.go|^--- FAIL|^FAIL' || { echo "failed"; return 1; }
}

on() { # on ARCH BINARY: how to run it here
	[ "$1" = "$(go env GOHOSTARCH)" ] && { echo "$2"; return; }
	case $1 in arm64) echo "qemu-aarch64-static $2" ;; amd64) echo "qemu-x86_64-static -cpu max $2" ;; esac
}

build v1 GOARCH=amd64 GOAMD64=v1
build v3 GOARCH=amd64 GOAMD64=v3
build arm64 GOARCH=arm64

# The compiler may fuse x*y+z wherever a product is not written float64(x*y): there must be no such instruction at all.
fused() { # fused ENV...
	printf '%-24s ' "no fused sums, ${*: -1}"
	if env GOOS=linux "$@" go build -gcflags=-S . 2>&1 | grep -E '(FN?M(ADD|SUB)|VFN?M(ADD|SUB))'; then
		echo "a product is fused into a sum"
		return 1
	fi
	echo "ok"
}
fused GOARCH=arm64
fused GOARCH=amd64 GOAMD64=v3

# shellcheck disable=SC2046
{
	run "amd64 v1" $(on amd64 "$tests/v1")
	run "amd64 v1, fma off" env GODEBUG=cpu.fma=off $(on amd64 "$tests/v1")
	run "amd64 v3" $(on amd64 "$tests/v3")
	run "arm64" $(on arm64 "$tests/arm64")
}
