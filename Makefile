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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: need-lab build ## break a node in network namespaces and let lasthop find out how
	bin/lasthop demo

.PHONY: build
build: need-go ## build bin/lasthop, one static binary
	$(GO) build -trimpath -ldflags '-s -w -X main.release=$(RELEASE)' -o bin/lasthop ./cmd/lasthop

.PHONY: generate
generate: need-c ## compile the BPF programs (needs clang) and write their Go bindings
	$(GO) generate ./bpf/...

.PHONY: fmt
fmt: need-format ## format Go and C
	gofmt -w $$(git ls-files '*.go')
	$(if $(C_FILES),clang-format-14 -i $(C_FILES))

.PHONY: lint
lint: need-format ## check style, import directions and common mistakes
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	$(if $(C_FILES),clang-format-14 --dry-run -Werror $(C_FILES))

# Tests find the commands that tools/need names, and no others.
COMMANDS = bin/commands
with-commands = tools/need --link $(COMMANDS) go @test; PATH='$(CURDIR)/$(COMMANDS)'

# What the scenarios' verdicts were: the tests write it, since what a test
# prints is hidden when it passes. It is shown when they fail as well. Most of a
# scenario is waiting, so more of them run at once than there are CPUs. Tests
# that pass within a second are not worth a line.
ACCURACY = bin/accuracy.txt
define run-tests
	rm -f $(ACCURACY); failed=0; $(with-commands) LASTHOP_ACCURACY='$(CURDIR)/$(ACCURACY)' \
		go tool -modfile=tools/go.mod gotestsum --format testname --jsonfile bin/tests.json -- \
		-count=1 -parallel 8 -timeout 40m $(1) | sed -uE '/^PASS [^ ]+ \((0\.[0-9]+s|cached)\)$$/d' || failed=1; \
	cat $(ACCURACY) || failed=1; exit $$failed
endef

.PHONY: test
test: need-test ## run every test, as root, those in network namespaces included
	@echo "all packages, as root on Linux $$(uname -r); nothing is skipped. The first build takes a while."
	@$(call run-tests,./...)

.PHONY: test-lab
test-lab: need-test ## run the tests that make nodes in network namespaces, and tell how right the verdicts were
	@$(call run-tests,./kind/... ./probe/collect/... ./probe/traffic/... ./probe/session/... ./cmd/...)

FUZZTIME ?= 5s

# The time is up by an interrupt, which every Go takes for a clean end: up to
# Go 1.26 the end of -fuzztime itself may fail a target (go.dev/issue/75804).
# It goes to the fuzzer alone (--foreground): a worker that it reaches first may
# seem to have crashed.
.PHONY: fuzz
fuzz: need-test ## feed every decoder what nobody would send, FUZZTIME (5s) each
	@grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file target; do \
		$(GO) test "$${file%/*}" -exec 'timeout --foreground --preserve-status --signal=INT $(FUZZTIME)' \
			-run '^$$' -fuzz "^$${target#func }$$" </dev/null || exit 1; \
	done

.PHONY: bench
bench: need-test ## measure what watching costs, beside an empty program, and judging, by size
	$(with-commands) go test -run '^$$' -bench . $$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -rn1 dirname | sort -u)

.PHONY: image
image: ## build the container image IMAGE (lasthop:dev)
	docker build --build-arg RELEASE='$(RELEASE)' -t '$(IMAGE)' .

.PHONY: need-go need-format need-c need-lab need-test
need-go:
	@tools/need go
need-format: need-go
	@tools/need clang-format-14
need-c: need-go
	@tools/need clang-14 llvm-strip-14 bpf/bpf_helpers.h
need-lab: need-go
	@tools/need @lab
need-test: need-go
	@tools/need @test
