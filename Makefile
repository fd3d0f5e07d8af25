# The checks and tools of the project. `make` lists the targets; `make ci` is what .ci/run does.
GO      ?= go
BIN     := $(CURDIR)/.bin
TOOL    := $(GO) tool -modfile=tools/go.mod
LINT    := $(BIN)/golangci-lint
LINT_VERSION := v2.15.0

.DEFAULT_GOAL := help

.PHONY: help build test race lint generate generate-check pictures notice notice-check orders golden deploy browser \
	fuzz acceptance mutants mutation museum swarm swarm-ci ebb-replay replay-check replay upgrade datadir bench paired \
	accuracy ci nightly attack vuln sbom reproducible clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# grpcnotrace leaves out gRPC's own pages of traces, 4 MB; nethttpomithttp2 leaves
# out HTTP/2 in net/http, 0.5 MB: the HTTP door speaks HTTP/1.1, and gRPC has its own
build: ## one static binary, ./ebb, of less than 30 MB
	CGO_ENABLED=0 $(GO) build -tags grpcnotrace,nethttpomithttp2 -trimpath -ldflags "-s -w" -o ebb ./cmd/ebb
	@size=$$(wc -c <ebb); echo "ebb: $$((size / 1000000)) MB"; test $$size -lt 30000000

test: ## all tests of the main module
	$(GO) test ./...

# Pure packages start no goroutine (internal/tidy holds that) and have no races. Of shard only the views are raced,
# which other goroutines read, and of bench/accuracy only its workers. Left out are also the tests that find planted
# bugs, and the three slowest tests of the node. The slowest packages come first, so that no core waits for the last.
# `go test` vets.
RACED_FIRST = ./cmd/ebb ./bench
# Packages whose time is mostly virtual run on one thread. On more, Go 1.26 gives the timers of a synctest bubble one
# race context. Two threads may use it at once: the detector reads beyond its stack, and the test dies
# (runtime.(*timer).maybeRunChan against timers.check). The detector looks at order, not time: it finds the same.
RACED_VIRTUAL = ./node ./chaos/sim ./cluster ./rpc ./client ./node/transport ./chaos/swarm
UNRACED = Mutant|FindsReadsOutOfOrder|LiesAreNoticed|RepeatedCommandsAreNoticed|NodesThatWentAreForgotten
UNRACED := $(UNRACED)|LeadersMoveHome|SlowDiskLeadsNothing
RACE = $(GO) test -race -short -vet=off -timeout 20m -skip '$(UNRACED)'
race: ## the tests under the race detector, without the slowest
	$(RACE) -cpu 1 $(RACED_VIRTUAL)
	$(RACE) $(RACED_FIRST) \
		$$($(GO) list ./... | grep -vE '/(sketch|sketch/bitmap|query|query/ebnf|internal/kernel|shard|bench/accuracy)$$' \
			| grep -vxF "$$($(GO) list $(RACED_FIRST) $(RACED_VIRTUAL))")
	$(GO) test -race -short -vet=off -run 'View|RunRepeats' ./shard ./bench/accuracy

$(LINT):
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

lint: $(LINT) ## golangci-lint over all modules
	$(LINT) run ./...
	cd deploy && $(LINT) run ./...
	cd web/browsertest && $(LINT) run ./...

# The generators are built into .bin, so that buf finds them by name.
generate: ## protobuf code, docs/openapi.json, docs/cli.md and the grammar of docs/query.md
	$(GO) build -modfile=tools/go.mod -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go \
		google.golang.org/grpc/cmd/protoc-gen-go-grpc github.com/bufbuild/buf/cmd/buf
	PATH=$(BIN):$$PATH $(BIN)/buf lint
	PATH=$(BIN):$$PATH $(BIN)/buf generate
	$(GO) test ./rpc -run TestOpenAPIIsCommitted -update
	$(GO) test ./cmd/ebb -run TestManualIsCommitted -update
	$(GO) test ./query -run TestPageIsCommitted -args -rewrite

generate-check: generate ## generated files are committed
	git diff --exit-code -- proto docs/openapi.json docs/cli.md docs/query.md

pictures: ## docs/demo.svg, from a recorded moment of the demo
	$(GO) test ./cmd/ebb -run TestDemoPictureIsCommitted -count 1 -update

# NOTICE goes where the binary goes.
notice: ## NOTICE, with the licences of all that is linked
	$(GO) -C tools run ./notice

notice-check: ## NOTICE is up to date
	$(GO) -C tools test ./notice
	$(GO) -C tools run ./notice -check

# Some streams have 100,000 events. A tenth of this is in the tests.
orders: ## 10,000 random streams in several orders against exact counts: 7 minutes
	EBB_ORDER_STREAMS=10000 $(GO) test ./shard -run TestOrderOfEvents -count 1 -timeout 120m -v

golden: ## replicated arithmetic gives the same bytes on every machine
	bash tools/golden.sh

# A module of its own, since the readers of these files are large.
deploy: ## tests of image, manifests, chart, units, alerts and dashboard
	cd deploy && $(GO) vet ./... && $(GO) test ./...

# A module of its own, since the browser's driver is no part of the product. Without Chromium it is skipped, and it
# fails where EBB_BROWSER is "required".
browser: ## what a web page in a real Chromium can do to a node
	cd web/browsertest && $(GO) vet ./... && $(GO) test -count 1 -v -timeout 3m ./...

# fuzz.txt has the result.
FUZZTIME ?= 10s
fuzz: ## every fuzz target for FUZZTIME (10s) beyond its seeds
	rm -f fuzz.txt
	bash tools/fuzz.sh $(FUZZTIME)

acceptance: ## the long runs with real processes and many seeds: hours
	EBB_KILL_RUNS=20 EBB_FAILOVER_RUNS=20 EBB_SET_RUNS=20 EBB_LONG=1 $(GO) test ./cmd/ebb \
		-run 'Import|Door|Resume|Restart|ParallelStart|OverTLS' -timeout 120m -v
	EBB_FAULTS=1 $(GO) test ./cmd/ebb -run FaultsOfProcesses -timeout 30m -v
	EBB_DELETED_KEYS=1000000 $(GO) test ./cmd/ebb -run MemoryOfADeletedNamespace -timeout 30m -v
	EBB_DEMO_KILLS=200 $(GO) test ./cmd/ebb -run DemoOutlivesKills -timeout 60m -v
	EBB_GROW=50000 $(GO) test ./cmd/ebb -run GrowthUnderLoad -timeout 30m -v
	EBB_SEEDS=1000 $(GO) test ./chaos/sim -run 'LeaderCutOff|VerifyLeader|MovingLeaders' -timeout 120m -v
	EBB_QUIET=10m $(GO) test ./chaos/sim -run ManyGroups -timeout 60m -v
	EBB_IDLE=10m $(GO) test ./cmd/ebb -run IdleFleet -timeout 60m -v

# Bugs are laid over the source, one after the other. Each is a build of half a minute of a core. EXTRA takes further
# flags of `go run ./chaos/bugs mutants`.
MUTANTS ?= .
mutants: ## planted bugs; a test or the swarm must notice each. MUTANTS is a pattern
	$(GO) run ./chaos/bugs mutants --only '$(MUTANTS)' $(EXTRA)

# docs/mutation.md has the results. It continues where it was stopped. FOR is how long it begins new changes, SAMPLE how
# many are drawn for each package, EXTRA takes further flags of `go -C tools run ./mutation`.
PACKAGES ?= ./node/acked ./node/wal ./shard ./sketch ./node/transport ./cluster ./node
SAMPLE ?= 300
FOR ?= 20m
mutation: ## small changes of PACKAGES by machine; the tests must notice each
	nice -n 19 $(GO) -C tools run ./mutation -sample $(SAMPLE) -for $(FOR) $(EXTRA) $(PACKAGES)

museum: ## every bug that was found: its test passes, and notices the mutant that puts it back
	$(GO) run ./chaos/bugs museum --run

# EXTRA takes further flags of `ebb chaos sim`.
SEEDS ?= 1-800
swarm: build ## SEEDS (1-800) of faults against simulated clusters, with a page of what happened
	./ebb chaos sim --seeds $(SEEDS) --report swarm.html $(EXTRA)

# Without a page, by a build of what `go build ./...` has compiled.
swarm-ci: ## the 800 seeds that every change has to pass
	$(GO) build -o $(BIN)/ebb ./cmd/ebb
	$(BIN)/ebb chaos sim --seeds 1-800

# chaos/replay says how. The first build takes a minute, since all is compiled again.
ebb-replay: ## a build in which a seed takes the same course each time
	$(GO) run ./chaos/replay $(BIN)/replay
	CGO_ENABLED=0 GOEXPERIMENT=norandomizedheapbase64 $(GO) build -tags grpcnotrace,nethttpomithttp2 -trimpath \
		-overlay $(BIN)/replay/overlay.json \
		-ldflags "-X github.com/ebbdb/ebb/chaos/swarm.replays=yes" -o ebb-replay ./cmd/ebb

# Two runs of a few seeds tell the same story and send the same bytes. So do seeds that fail, with each planted bug that
# the swarm has to notice (a build each).
replay-check: ebb-replay ## two runs of a few seeds are the same to the byte
	EBB_REPLAY=$(CURDIR)/ebb-replay $(GO) test ./chaos/replay -run TestReplays -count 1 -timeout 60m -v

replay: ebb-replay ## SEEDS with the story of each, by the build of ebb-replay
	./ebb-replay chaos sim --seeds $(SEEDS) --story $(EXTRA)

# Three processes under load, back and forth between the builds, with snapshots, wiped disks and an audit.
FROM ?= HEAD~1
upgrade: ## real processes rolled from the build of FROM (HEAD~1) to this one and back: some minutes
	EBB_UPGRADE=$(FROM) $(GO) test ./cmd/ebb -run 'TestRollingUpgrade|TestUpgradeOf' -count 1 -v -timeout 40m

# cmd/ebb/testdata/datadirs/README.md says how it is kept.
datadir: ## a data directory that the build of FROM writes, which every later build has to open
	EBB_DATADIR=$(FROM) $(GO) test ./cmd/ebb -run TestMakeDataDir -count 1 -v

bench: ## benchmarks of the pure packages, kept in docs/benchmarks
	bash tools/bench.sh

# The pairs are interleaved. The result is a bound on what this commit costs more.
PAIRS ?= 10
paired: ## writes and reads of this commit and of FROM, in pairs: 15 minutes of a quiet machine
	$(GO) run ./bench/paired -pairs $(PAIRS) $(FROM)

# 2,000 trials at 40 sizes from 1 to 10^10, and the figures of the origins.
accuracy: ## bias and error of every kind compared with theory: half an hour
	$(GO) run ./cmd/ebb accuracy --trials 2000 --per-decade 4 --max 1e10 --figures 20 --out accuracy

ci: ## what every change has to pass
	bash .ci/run

# CHECKS is a pattern of names of checks.
CHECKS ?= .
nightly: ## every long check to its end, recorded in docs/nightly.md: most of a day
	bash tools/nightly.sh '$(CHECKS)'

# The command starts the cluster itself: open, with tokens, with TLS. EXTRA takes further flags.
attack: ## a cluster of this build, attacked over every port
	$(GO) run ./chaos/attack $(EXTRA)

vuln: ## known vulnerabilities of what is linked
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0 ./...

sbom: build ## what is linked, as CycloneDX: ebb.cdx.json
	$(TOOL) cyclonedx-gomod bin -json -std -noserial -version "$$(git describe --always --dirty)" -output ebb.cdx.json ebb
	@grep -q '"bomFormat": "CycloneDX"' ebb.cdx.json && echo "ebb.cdx.json: $$(grep -c '"purl"' ebb.cdx.json) components"

# In two directories, with and without a build cache.
reproducible: ## the committed tree gives the same bytes twice: some minutes
	bash tools/reproducible.sh

clean: ## remove what the other targets build
	rm -rf ebb ebb-replay ebb.cdx.json fuzz.txt dist .bin
