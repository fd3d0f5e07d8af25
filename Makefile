# The checks, each a line one can run alone. `make ci` is what .ci/run does.
GO      ?= go
BIN     := $(CURDIR)/.bin
TOOL    := $(GO) tool -modfile=tools/go.mod
LINT    := $(BIN)/golangci-lint
LINT_VERSION := v2.15.0

.PHONY: build test race lint generate generate-check golden fuzz acceptance accuracy ci bench vuln clean

# one static binary of less than 30 MB
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o ebb ./cmd/ebb
	@size=$$(wc -c <ebb); echo "ebb: $$((size / 1000000)) MB"; test $$size -lt 30000000

test:
	$(GO) test ./...

# Packages that start no goroutine, which internal/tidy sees to, have no races; shard has views that others read.
race:
	$(GO) test -race -short -timeout 20m $$($(GO) list ./... | grep -vE '/(sketch|sketch/bitmap|query|query/ebnf|internal/kernel)$$')

$(LINT):
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

lint: $(LINT)
	$(LINT) run ./...

# the generators are built into .bin, so that buf finds them by name
generate:
	$(GO) build -modfile=tools/go.mod -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc github.com/bufbuild/buf/cmd/buf
	PATH=$(BIN):$$PATH $(BIN)/buf lint
	PATH=$(BIN):$$PATH $(BIN)/buf generate
	$(GO) test ./rpc -run TestOpenAPIIsCommitted -update
	$(GO) test ./cmd/ebb -run TestManualIsCommitted -update
	$(GO) test ./query -run TestPageIsCommitted -args -rewrite

generate-check: generate
	git diff --exit-code -- proto docs/openapi.json docs/cli.md docs/query.md

# replicated arithmetic gives the same bytes on every machine
golden:
	bash tools/golden.sh

# every fuzz target for a few seconds beyond its seeds
fuzz:
	bash tools/fuzz.sh

# the long runs with real processes and many seeds: hours
acceptance:
	EBB_KILL_RUNS=20 EBB_FAILOVER_RUNS=20 EBB_LONG=1 $(GO) test ./cmd/ebb -run 'Import|Door|Resume|Restart' -timeout 120m -v
	EBB_SEEDS=1000 $(GO) test ./chaos/sim -run 'LeaderCutOff|VerifyLeader' -timeout 120m -v

# the benchmarks of the pure packages, kept in docs/benchmarks beside those before
bench:
	bash tools/bench.sh

# bias and error of every kind beside theory, 2,000 trials at 40 sizes from 1 to 10^10, and the figures of the origins: half an hour
accuracy:
	$(GO) run ./cmd/ebb accuracy --trials 2000 --per-decade 4 --max 1e10 --figures 20 --out accuracy

ci:
	bash .ci/run

vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0 ./...

clean:
	rm -rf ebb dist .bin
