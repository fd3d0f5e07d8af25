# The checks, each a line one can run alone. `make ci` is what .ci/run does.
GO      ?= go
BIN     := $(CURDIR)/.bin
TOOL    := $(GO) tool -modfile=tools/go.mod
LINT    := $(BIN)/golangci-lint
LINT_VERSION := v2.15.0

.PHONY: build test race lint generate generate-check golden deploy fuzz acceptance swarm swarm-ci ebb-replay replay replay-check upgrade datadir mutants museum accuracy ci bench vuln sbom reproducible clean notice notice-check attack

# one static binary of less than 30 MB. grpcnotrace leaves out gRPC's own pages of traces, 4 MB; nethttpomithttp2 leaves
# out HTTP/2 in net/http, 0.5 MB: the HTTP door speaks HTTP/1.1, and gRPC has its own
build:
	CGO_ENABLED=0 $(GO) build -tags grpcnotrace,nethttpomithttp2 -trimpath -ldflags "-s -w" -o ebb ./cmd/ebb
	@size=$$(wc -c <ebb); echo "ebb: $$((size / 1000000)) MB"; test $$size -lt 30000000

test:
	$(GO) test ./...

# Packages that start no goroutine, which internal/tidy sees to, have no races. Nor does shard, but for its views, which others read, nor bench/accuracy, but for its workers: what
# its errors are the tests say without -race. Neither are those raced that see planted bugs or told lies found, nor the three of the node that take longest. The packages that take longest come first, so that no core waits for the last; `go test ./...` vets.
RACED_FIRST = ./cmd/ebb ./node ./bench
# Packages whose time is mostly virtual run on one thread. On more, Go 1.26 gives the timers of a synctest bubble one
# race context, which two threads may use at once, and then the detector reads beyond its stack and the test dies
# (runtime.(*timer).maybeRunChan beside timers.check). Order is what the detector looks at, not time: it finds the same.
RACED_VIRTUAL = ./chaos/sim ./cluster ./rpc ./client ./node/transport ./chaos/swarm
RACE = $(GO) test -race -short -vet=off -timeout 20m -skip 'Mutant|FindsReadsOutOfOrder|LiesAreNoticed|RepeatedCommandsAreNoticed|NodesThatWentAreForgotten|LeadersMoveHome|SlowDiskLeadsNothing'
race:
	$(RACE) -cpu 1 $(RACED_VIRTUAL)
	$(RACE) $(RACED_FIRST) \
		$$($(GO) list ./... | grep -vE '/(sketch|sketch/bitmap|query|query/ebnf|internal/kernel|shard|bench/accuracy)$$' | grep -vxF "$$($(GO) list $(RACED_FIRST) $(RACED_VIRTUAL))")
	$(GO) test -race -short -vet=off -run 'View|RunRepeats' ./shard ./bench/accuracy

$(LINT):
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

lint: $(LINT)
	$(LINT) run ./...
	cd deploy && $(LINT) run ./...
	cd web/browsertest && $(LINT) run ./...

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

# NOTICE: the licences of all that is linked into the binary, which go where it goes
notice:
	$(GO) -C tools run ./notice

notice-check:
	$(GO) -C tools test ./notice
	$(GO) -C tools run ./notice -check

# ten thousand random streams in several orders each, some of 100,000 events, against exact counts: a tenth is in the tests
.PHONY: orders
orders:
	EBB_ORDER_STREAMS=10000 $(GO) test ./shard -run TestOrderOfEvents -count 1 -timeout 120m -v

# replicated arithmetic gives the same bytes on every machine
golden:
	bash tools/golden.sh

# images, manifests, chart, units, alerts and dashboard: a module of its own, since what reads them is large
deploy:
	cd deploy && $(GO) vet ./... && $(GO) test ./...

# what a web page in a real Chromium can do to a node: a module of its own, since what drives the browser is no part of the product. Without Chromium it is skipped,
# and fails where EBB_BROWSER is "required"
.PHONY: browser
browser:
	cd web/browsertest && $(GO) vet ./... && $(GO) test -count 1 -v -timeout 3m ./...

# every fuzz target for FUZZTIME beyond its seeds; fuzz.txt says what came of it
FUZZTIME ?= 10s
fuzz:
	rm -f fuzz.txt
	bash tools/fuzz.sh $(FUZZTIME)

# the long runs with real processes and many seeds: hours
acceptance:
	EBB_KILL_RUNS=20 EBB_FAILOVER_RUNS=20 EBB_SET_RUNS=20 EBB_LONG=1 $(GO) test ./cmd/ebb -run 'Import|Door|Resume|Restart|ParallelStart|OverTLS' -timeout 120m -v
	EBB_FAULTS=1 $(GO) test ./cmd/ebb -run FaultsOfProcesses -timeout 30m -v
	EBB_DELETED_KEYS=1000000 $(GO) test ./cmd/ebb -run MemoryOfADeletedNamespace -timeout 30m -v
	EBB_DEMO_KILLS=200 $(GO) test ./cmd/ebb -run DemoOutlivesKills -timeout 60m -v
	EBB_GROW=50000 $(GO) test ./cmd/ebb -run GrowthUnderLoad -timeout 30m -v
	EBB_SEEDS=1000 $(GO) test ./chaos/sim -run 'LeaderCutOff|VerifyLeader|MovingLeaders' -timeout 120m -v
	EBB_QUIET=10m $(GO) test ./chaos/sim -run ManyGroups -timeout 60m -v
	EBB_IDLE=10m $(GO) test ./cmd/ebb -run IdleFleet -timeout 60m -v

# bugs laid over the source, one after the other, which tests and the swarm must notice; each is a build of half a minute of a core; EXTRA takes further flags of `go run ./chaos/bugs mutants`
MUTANTS ?= .
mutants:
	$(GO) run ./chaos/bugs mutants --only '$(MUTANTS)' $(EXTRA)

# many small changes of a package, of which its tests must notice each: docs/mutation.md. It continues where it was stopped; FOR is how long it begins new ones, SAMPLE how many of a package are drawn,
# EXTRA takes further flags of `go -C tools run ./mutation`
PACKAGES ?= ./node/acked ./node/wal ./shard ./sketch ./node/transport ./cluster ./node
SAMPLE ?= 300
FOR ?= 20m
.PHONY: mutation
mutation:
	nice -n 19 $(GO) -C tools run ./mutation -sample $(SAMPLE) -for $(FOR) $(EXTRA) $(PACKAGES)

# every bug that was found: its test passes, and notices the mutant that puts it back
museum:
	$(GO) run ./chaos/bugs museum --run

# seeds of faults against simulated clusters, with a page of what happened; EXTRA takes further flags of `ebb chaos sim`
SEEDS ?= 1-800
swarm: build
	./ebb chaos sim --seeds $(SEEDS) --report swarm.html $(EXTRA)

# the seeds that every change is to pass, without a page, by a build of what `go build ./...` has compiled
swarm-ci:
	$(GO) build -o $(BIN)/ebb ./cmd/ebb
	$(BIN)/ebb chaos sim --seeds 1-800

# a build in which a plan takes the same course each time, and seeds replayed with it: chaos/replay says how. The first takes a minute, since all is compiled again
ebb-replay:
	$(GO) run ./chaos/replay $(BIN)/replay
	CGO_ENABLED=0 GOEXPERIMENT=norandomizedheapbase64 $(GO) build -tags grpcnotrace,nethttpomithttp2 -trimpath -overlay $(BIN)/replay/overlay.json \
		-ldflags "-X github.com/ebbdb/ebb/chaos/swarm.replays=yes" -o ebb-replay ./cmd/ebb

# two runs of a few seeds tell the same story, to the byte, and have sent the same; so do seeds that fail, with each bug planted that the swarm is to notice (a build each)
replay-check: ebb-replay
	EBB_REPLAY=$(CURDIR)/ebb-replay $(GO) test ./chaos/replay -run TestReplays -count 1 -timeout 60m -v

replay: ebb-replay
	./ebb-replay chaos sim --seeds $(SEEDS) --story $(EXTRA)

# three processes under load, from the build of FROM to the present one, back and forth, with snapshots, wiped disks and an audit: some minutes
FROM ?= HEAD~1
upgrade:
	EBB_UPGRADE=$(FROM) $(GO) test ./cmd/ebb -run 'TestRollingUpgrade|TestUpgradeOf' -count 1 -v -timeout 40m

# a data directory written by the build of FROM, which every later build has to open: cmd/ebb/testdata/datadirs/README.md
datadir:
	EBB_DATADIR=$(FROM) $(GO) test ./cmd/ebb -run TestMakeDataDir -count 1 -v

# the benchmarks of the pure packages, kept in docs/benchmarks beside those before
bench:
	bash tools/bench.sh

# writes and reads of this commit beside those of FROM, in interleaved pairs, with a bound of what they cost more: 15 minutes of a quiet machine
PAIRS ?= 10
.PHONY: paired
paired:
	$(GO) run ./bench/paired -pairs $(PAIRS) $(FROM)

# bias and error of every kind beside theory, 2,000 trials at 40 sizes from 1 to 10^10, and the figures of the origins: half an hour
accuracy:
	$(GO) run ./cmd/ebb accuracy --trials 2000 --per-decade 4 --max 1e10 --figures 20 --out accuracy

ci:
	bash .ci/run

# all that takes too long for every change, to its end: most of a day. docs/nightly.md has the record; CHECKS chooses some
CHECKS ?= .
.PHONY: nightly
nightly:
	bash tools/nightly.sh '$(CHECKS)'

# a cluster of this build, which the command starts itself, is attacked over every port: open, with tokens, with TLS; EXTRA takes further flags
attack:
	$(GO) run ./chaos/attack $(EXTRA)

vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0 ./...

# what is linked into the binary, as CycloneDX: ebb.cdx.json
sbom: build
	$(TOOL) cyclonedx-gomod bin -json -std -noserial -version "$$(git describe --always --dirty)" -output ebb.cdx.json ebb
	@grep -q '"bomFormat": "CycloneDX"' ebb.cdx.json && echo "ebb.cdx.json: $$(grep -c '"purl"' ebb.cdx.json) components"

# the committed tree gives the same bytes in two directories, with and without a build cache: some minutes
reproducible:
	bash tools/reproducible.sh

clean:
	rm -rf ebb ebb-replay ebb.cdx.json fuzz.txt dist .bin
