#!/usr/bin/env bash
# Builds the committed tree twice, in two directories of different names, the second time without any build cache, and compares the bytes of the binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

build() { # build DIRECTORY [GOCACHE]
	mkdir -p "$work/$1"
	git archive HEAD | tar -x -C "$work/$1"
	(cd "$work/$1" && GOCACHE=${2:-$(go env GOCACHE)} CGO_ENABLED=0 GOFLAGS= "${GO:-go}" build -tags grpcnotrace,nethttpomithttp2 -trimpath -buildvcs=false -ldflags "-s -w" -o ebb ./cmd/ebb)
	sha256sum <"$work/$1/ebb" | cut -d' ' -f1
}

one=$(build one)
other=$(build another/place/of/another/depth "$work/cache")
[ "$one" = "$other" ] || { echo "two builds of $(git rev-parse --short HEAD) differ: $one and $other" >&2; exit 1; }
echo "ebb of $(git rev-parse --short HEAD) on $(go env GOOS)/$(go env GOARCH) with $(go env GOVERSION): SHA-256 $one, twice"
