# Every target that a person calls has a "##" comment: `make` alone prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

GO ?= $(or $(shell command -v go),/usr/local/go/bin/go)
IMAGE ?= lasthop:dev
RELEASE ?= $(shell git describe --tags --always --dirty 2>/dev/null)

# The product is pure Go, its BPF objects are committed. No target but generate
# and the C part of lint needs a C compiler.
export CGO_ENABLED := 0
export PATH := $(dir $(GO)):$(PATH):/usr/sbin:/sbin

C_FILES = $(filter-out %/vmlinux.h,$(wildcard bpf/*.c bpf/*.h bpf/include/*.h))

.PHONY: help
help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: need-lab build ## break a node in network namespaces and let lasthop find out how
	bin/lasthop demo

.PHONY: build
build: need-go ## build bin/lasthop, one static binary
	$(GO) build -trimpath -ldflags '-s -w -X main.release=$(RELEASE)' -o bin/lasthop ./cmd/lasthop

.PHONY: plugin
plugin: need-go ## build bin/kubectl-lasthop, the plugin for kubectl; GOOS and GOARCH choose another system
	$(GO) build -trimpath -ldflags '-s -w -X main.release=$(RELEASE)' -o bin/kubectl-lasthop$(if $(filter windows,$(GOOS)),.exe) ./cmd/kubectl-lasthop

.PHONY: man
man: need-go ## write the manual pages of lasthop in bin/man
	mkdir -p bin/man
	$(GO) test -trimpath -count=1 -vet=off ./cmd/lasthop -run TestManPages -args -man '$(CURDIR)/bin/man'

.PHONY: plugins
plugins: need-go ## build the plugin for other systems in bin/plugins, and compile its tests for them
	for system in darwin windows; do \
		GOOS=$$system $(GO) build -trimpath -ldflags '-s -w' -o bin/plugins/$$system/ ./cmd/kubectl-lasthop; \
		GOOS=$$system $(GO) vet -trimpath ./cmd/kubectl-lasthop/...; \
	done

.PHONY: generate
generate: need-c ## compile the BPF programs (needs clang) and write their Go bindings
	$(GO) generate ./bpf/...

.PHONY: fmt
fmt: need-format ## format Go and C
	gofmt -w $$(git ls-files '*.go')
	$(if $(C_FILES),clang-format-14 -i $(C_FILES))

.PHONY: lint
lint: need-lint ## check style, import directions and common mistakes
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	$(if $(C_FILES),clang-format-14 --dry-run -Werror $(C_FILES))
	shellcheck -S warning $$(git grep -lE '^#!.*sh$$' -- .ci tools)
	$(GO) tool -modfile=tools/actionlint.mod actionlint .github/workflows/*.yml docs/examples/*.yml

# A copy of the database, where vuln.go.dev is out of reach: file:///DIR.
VULNDB ?= https://vuln.go.dev

.PHONY: vuln
vuln: need-go ## look for known vulnerabilities in called code, by the database VULNDB (vuln.go.dev)
	$(GO) tool -modfile=tools/go.mod govulncheck -db $(VULNDB) ./...

# Tests find the commands that tools/need names, and no others.
COMMANDS = bin/commands
link-commands = tools/need --link $(COMMANDS) go @test
only-commands = PATH='$(CURDIR)/$(COMMANDS)'
with-commands = $(link-commands); $(only-commands)

# What the scenarios' verdicts were: the tests write it, since what a test
# prints is hidden when it passes. It is shown when they fail as well. Tests
# that pass within a second are not worth a line.
#
# Most of a scenario is waiting, so more of them run at once than there are CPUs.
# What needs a CPU takes turns in the tests themselves, and a window begins when the
# machine is fit for it. The servers of labs are goroutines beside much other work: with
# more threads than CPUs it is the kernel that shares these out, in milliseconds, while
# Go lets others go on for ten, one after the other. And they come before compilers. The
# package that takes longest is first. make lint looks for what go vet finds.
CPUS := $(shell grep -c ^processor /proc/cpuinfo)
PARALLEL ?= $(shell echo $$((3 * $(CPUS))))
THREADS := $(shell echo $$((2 * $(CPUS))))
ACCURACY = bin/accuracy.txt
TRACERS = bin/tracers.md
CPU = bin/cpu
define run-tests
	rm -rf $(ACCURACY) $(TRACERS) $(CPU); mkdir -p $(CPU); failed=0; $(only-commands) LASTHOP_ACCURACY='$(CURDIR)/$(ACCURACY)' \
		LASTHOP_TRACERS='$(CURDIR)/$(TRACERS)' LASTHOP_SEEDS='$(SEEDS)' \
		go tool -modfile=tools/go.mod gotestsum --format testname --jsonfile bin/tests.json -- \
		-count=1 -p 2 -parallel $(PARALLEL) -cpu $(THREADS) -exec 'nice -n -5 $(CURDIR)/tools/timed $(CURDIR)/$(CPU)' -vet=off -timeout 60m $(1) | sed -uE '/^PASS [^ ]+ \((0\.[0-9]+s|cached)\)$$/d' || failed=1; \
	cat $(ACCURACY) || failed=1; tools/timed --sum $(CPU); exit $$failed
endef
# The first build has a hundred packages to download and compile: go build names each.
announce-build = @echo "downloading modules, and compiling packages that are not yet:"; $(GO) mod download; $(GO) build -v ./...

test: SEEDS ?= 1
test-all: SEEDS ?= 2
test-lab: SEEDS ?= 3

.PHONY: test
test: need-test ## run every test, as root, including those in network namespaces; long ones in a short form
	$(announce-build)
	@echo "all packages, as root on Linux $$(uname -r); nothing is skipped"
	@$(link-commands)
	@$(call run-tests,-short ./cmd/lasthop ./...)

.PHONY: test-all
test-all: need-test ## run every test in its long form; healthy scenarios at SEEDS (2) seeds
	$(announce-build)
	@$(link-commands)
	@$(call run-tests,./cmd/lasthop ./...)
	@$(MAKE) growth

# Coverage counts each statement that is executed. In slices loops hide.
.PHONY: growth
growth: need-test ## check that four times the input takes at most five times the work
	$(with-commands) go test -count=1 -run '^TestGrowth$$' -covermode=atomic -coverpkg=./probe/...,./tui/...,slices \
		$$(grep -rl --include='*_test.go' 'growth\.Test(' probe tui | xargs -rn1 dirname | sort -u | sed 's|^|./|')

.PHONY: test-lab
test-lab: need-test ## run the tests on nodes in network namespaces, and print the accuracy of verdicts; healthy scenarios at SEEDS (3) seeds
	@$(link-commands)
	@$(call run-tests,./cmd/lasthop ./kind/... ./probe/collect/... ./probe/traffic/... ./probe/session/... ./cmd/...)

FRAMES ?= 1000000

.PHONY: test-frames
test-frames: need-test ## give the programs on links FRAMES (1000000) random and mutated frames
	$(with-commands) go test ./probe/traffic -run TestFrames -count=1 -v -timeout 0 -frames '$(FRAMES)'

FUZZTIME ?= 5s

# The time is up by an interrupt, which every Go takes for a clean end: up to
# Go 1.26 the end of -fuzztime itself may fail a target (go.dev/issue/75804).
# Minimizing what is interesting would take all of it otherwise, so that is bounded.
# It goes to the fuzzer alone (--foreground): a worker that it reaches first may
# seem to have crashed.
.PHONY: fuzz
fuzz: need-test ## fuzz every decoder, FUZZTIME (5s) each
	@grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file target; do \
		$(GO) test "$${file%/*}" -exec 'timeout --foreground --preserve-status --signal=INT $(FUZZTIME)' \
			-run '^$$' -fuzz "^$${target#func }$$" -fuzzminimizetime 10x </dev/null || exit 1; \
	done

AT ?= 2,3,5,9,17,40,3+,7+,30+

.PHONY: faults
faults: need-test ## inject errors into the AT-th system calls and bpf(2) commands of a check
	$(with-commands) go test ./cmd/lasthop -run 'TestInjected(Errors|BPF)' -count=1 -timeout 0 -inject-at '$(AT)'

EVERY ?= 1

.PHONY: mutate
mutate: need-test ## change the judge's conditions, each EVERY-th (1), and list the changes that no unit test notices
	$(with-commands) go test -tags mutate -count=1 -timeout 0 -v -run '^TestMutate$$' . -every '$(EVERY)'

.PHONY: bench
bench: need-test ## measure the cost of watching, relative to an empty program, and of judging, by size
	$(with-commands) go test -run '^$$' -bench . $$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -rn1 dirname | sort -u)

# Go under an emulated CPU takes too long to compile there.
ARCH ?= amd64
KERNELS ?= 5.10 6.1 6.12 $(if $(filter amd64,$(ARCH)),7)

.PHONY: test-kernels
test-kernels: need-kernels ## try other kernels (KERNELS), of amd64 or ARCH=arm64, in virtual machines: scenarios, counters, loaded modules; SHORT=1: the most important
	GOARCH=$(ARCH) $(GO) build -trimpath -ldflags '-s -w' -o bin/kernels/$(ARCH)/ ./cmd/lasthop
	GOARCH=$(ARCH) $(GO) test -c -tags kernels -o bin/kernels/$(ARCH)/ ./cmd/lasthop ./probe/traffic ./probe/session
	ARCH=$(ARCH) tools/kernels/run $(KERNELS)

AGENT_FOR ?= 1m

.PHONY: bench-agent
bench-agent: need-test build ## measure the cost of the agent in normal operation, and of bpftrace if it is on PATH, for AGENT_FOR (1m), by pods and rules
	bpftrace=$$(command -v bpftrace || true); $(with-commands) go test ./cmd/lasthop -run '^$$' -bench BenchmarkAgent -benchtime 1x -timeout 0 -agent-for '$(AGENT_FOR)' -agent-binary '$(CURDIR)/bin/lasthop' -bpftrace-binary "$$bpftrace"

ROUNDS ?= 11

.PHONY: bench-peers
bench-peers: need-peers build ## compare the cost of lasthop and other tools, ROUNDS (11) times each
	$(GO) run ./kind/peers bin/lasthop $(ROUNDS)

DURATION ?= 1h

.PHONY: soak
soak: need-test ## watch a node under load for DURATION (1h): floods, connections, pods that start and end
	$(with-commands) go test ./cmd/lasthop/soak -count=1 -v -timeout 0 -duration '$(DURATION)'

.PHONY: image
image: ## build the container image IMAGE (lasthop:dev)
	docker build --build-arg RELEASE='$(RELEASE)' -t '$(IMAGE)' .

ARCHITECTURES ?= amd64 arm64
# The name that a node's runtime knows an image by is whole.
REFERENCE = $(if $(findstring /,$(IMAGE)),,docker.io/library/)$(IMAGE)

.PHONY: image-archive
image-archive: need-image ## write the same image to bin/lasthop-ARCH.tar without Docker, for `ctr images import` or `docker load`
	@for arch in $(ARCHITECTURES); do \
		GOOS=linux GOARCH=$$arch $(GO) build -trimpath -ldflags '-s -w -X main.release=$(RELEASE)' -o "bin/lasthop-$$arch" ./cmd/lasthop; \
		tools/image "bin/lasthop-$$arch.tar" "bin/lasthop-$$arch" "$$arch" '$(REFERENCE)'; \
	done

HELM = $(GO) tool -modfile=tools/helm.mod helm
CHART_ALL = --set podMonitor=true,prometheusRule=true,dashboard=true,nodeProblemDetector=true,events=true

.PHONY: chart
chart: need-go ## check the Helm chart, and write its plain manifests to charts/lasthop.yaml
	$(HELM) lint --strict --kube-version 1.34.0 charts/lasthop $(CHART_ALL)
	$(HELM) template lasthop charts/lasthop --kube-version 1.34.0 $(CHART_ALL) >/dev/null
	@echo '# Written by make chart: what charts/lasthop makes by default. kubectl apply -n kube-system -f' >charts/lasthop.yaml
	$(HELM) template lasthop charts/lasthop --kube-version 1.34.0 --namespace kube-system | sed '/^# Source/d' >>charts/lasthop.yaml

.PHONY: release
release: need-image ## build the release RELEASE in bin/release: archives of both commands, deb and rpm, SBOMs, checksums, the krew manifest
	tools/release '$(RELEASE)'

# Two clones, in directories of other names, one after the other.
.PHONY: reproduce
reproduce: need-image ## build the release of this commit twice, for PLATFORMS (all), and compare the bytes
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	for clone in one another/place; do \
		git clone --quiet --local . "$$dir/$$clone" && "$$dir/$$clone/tools/release" v0.0.0 >/dev/null || exit 1; \
	done; \
	diff -r "$$dir/one/bin/release" "$$dir/another/place/bin/release" && cat "$$dir/one/bin/release/checksums.txt"

.PHONY: release-check
release-check: need-image ## check the output of make release
	tools/release --check '$(RELEASE)'

HOST = $(shell $(GO) env GOHOSTARCH)
INSPECTOR = @modelcontextprotocol/inspector@0.17.2
CLUSTER_TESTS ?= .
CLUSTER_FLAGS ?=

.PHONY: test-cluster
test-cluster: need-cluster plugin ## run the plugin and kubectl debug on a real Kubernetes in namespaces; the first run builds it
	@$(MAKE) image-archive ARCHITECTURES=$(HOST) IMAGE=lasthop:dev
	$(GO) build -modfile=tools/helm.mod -o bin/helm helm.sh/helm/v3/cmd/helm
	npm install --no-audit --no-fund --prefix bin/inspector '$(INSPECTOR)'
	cd tools/cluster && $(GO) build -ldflags '-s -w' -o ../../bin/pod ./pod
	tools/image bin/pod.tar bin/pod $(HOST) docker.io/library/pod:dev pod
	read -r commands debian < <(tools/cluster/build); \
	PATH="$$commands:$(CURDIR)/bin:$$debian/usr/bin:$$PATH" LASTHOP_INSPECTOR='$(CURDIR)/bin/inspector/node_modules/.bin/mcp-inspector' LASTHOP_BINARY='$(CURDIR)/bin/lasthop-$(HOST)' \
		LASTHOP_IMAGES='$(CURDIR)/bin/pod.tar $(CURDIR)/bin/lasthop-$(HOST).tar' \
		$(GO) test -tags cluster -count=1 -v -timeout 30m -run '$(CLUSTER_TESTS)' ./cmd/kubectl-lasthop/clustertest $(CLUSTER_FLAGS)

CILIUM_TESTS ?= .
CILIUM_VERSIONS ?= 1.18.4 1.19.5 1.20.2

.PHONY: test-cilium
test-cilium: need-cilium build ## compare lasthop with the real Cilium on nodes in namespaces, each version in three modes; the first run builds them
	$(GO) test -tags cilium -c -o bin/cilium.test ./cmd/lasthop/ciliumtest
	cd cmd/lasthop/ciliumtest && for v in $(CILIUM_VERSIONS); do \
		CILIUM_VERSION=$$v ../../../bin/cilium.test -test.v -test.timeout 30m -test.run '$(CILIUM_TESTS)' || exit; done

NEIGHBOR_TESTS ?= .

.PHONY: test-neighbors
test-neighbors: need-neighbors build ## try lasthop beside programs of Debian that keep a node's routes, rules or addresses
	$(GO) test -tags neighbors -c -o bin/neighbors.test ./cmd/lasthop/neighbortest
	export NEIGHBORS=$$(tools/neighbors/build); cd cmd/lasthop/neighbortest && ../../../bin/neighbors.test -test.v -test.timeout 30m -test.run '$(NEIGHBOR_TESTS)'

KIND_SCENARIOS ?=

.PHONY: test-kind
test-kind: need-kind ## run the scenarios that work on kind, all or KIND_SCENARIOS (a,b), on a kind cluster; the first run builds its parts
	mkdir -p bin
	$(GO) test -tags kind -c -o bin/kind.test ./cmd/lasthop
	LASTHOP_KIND_ONLY='$(KIND_SCENARIOS)' LASTHOP_KIND_IMAGE=lasthop-node:dev \
		tools/kind/run env -C cmd/lasthop ../../bin/kind.test -test.run TestKind -test.v -test.timeout 60m

.PHONY: test-inspector
test-inspector: need-inspector ## ask lasthop mcp by the MCP inspector's command line, and compare that with docs/agents
	npm install --no-audit --no-fund --prefix bin/inspector '$(INSPECTOR)'
	LASTHOP_INSPECTOR='$(CURDIR)/bin/inspector/node_modules/.bin/mcp-inspector' $(GO) test -tags inspector -count=1 -run TestInspector ./cmd/lasthop

.PHONY: need-go need-format need-lint need-c need-lab need-test need-kernels need-peers need-image need-cluster need-cilium need-neighbors need-kind need-inspector
need-go:
	@tools/need go
need-format: need-go
	@tools/need clang-format-14
need-lint: need-format
	@tools/need shellcheck
need-c: need-go
	@tools/need clang-14 llvm-strip-14 bpf/bpf_helpers.h
need-lab: need-go
	@tools/need @lab
need-test: need-go
	@tools/need @test
need-kernels: need-go
	@ARCH=$(ARCH) tools/need @kernels
need-peers: need-go
	@tools/need @peers
need-image: need-go
	@tools/need @image
need-inspector: need-test
	@tools/need npm
need-cluster: need-go
	@tools/need @cluster
need-cilium: need-go
	@tools/need @cilium
need-neighbors: need-go
	@tools/need @neighbors
need-kind: need-go
	@tools/need @kind
