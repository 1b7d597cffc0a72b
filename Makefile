# The entry points of Mainstay. `make help` lists them.
# Everything that is built or fetched goes to CACHE, so that a new clone finds it again.

CACHE ?= $(HOME)/.cache/mainstay
DATA ?= mainstay.data
PREFIX ?= /usr/local
# Where packages, archives and the contents of a container go.
DIST ?= dist
DOCKER ?= docker
export CARGO_TARGET_DIR ?= $(CACHE)/target
export MAINSTAY_PEERS ?= $(CACHE)/peers

# RocksDB is hundreds of C++ files: a compiler cache, which `deps` installs, shares them between
# profiles and clones. Always the same compiler: another value would compile RocksDB again.
export CCACHE_DIR ?= $(CACHE)/ccache
export CC := ccache gcc
export CXX := ccache g++

.PHONY: help deps deps-test peers build run test lint bench interop install deb archive container

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

deps: ## Install what the build needs (Debian and Ubuntu)
	@scripts/deps.sh build

deps-test: deps
	@scripts/deps.sh test

peers: deps-test ## Build the programs that tests compare with: etcd, etcdctl, etcdutl
	@scripts/peers.sh "$(MAINSTAY_PEERS)"

build: deps
	@scripts/say-first-build.sh "$(CARGO_TARGET_DIR)/release"
	cargo build --release --locked --bin mainstay

run: ## Build and serve on 127.0.0.1:2379, data in DATA (default ./mainstay.data)
	@$(MAKE) --no-print-directory build
	@echo "Serving on http://127.0.0.1:2379, data in $(DATA). Stop with Ctrl-C."
	$(CARGO_TARGET_DIR)/release/mainstay etcd --name local --data-dir "$(DATA)"

test: ## Run all tests, with the programs that they need
	@$(MAKE) --no-print-directory peers
	@$(MAKE) --no-print-directory lint run-tests

.PHONY: run-tests
run-tests:
	@scripts/say-first-build.sh "$(CARGO_TARGET_DIR)/debug"
	cargo build --locked --workspace --bins
	cargo test --locked --workspace

lint: deps ## Check formatting and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

install: ## Put the release build with its links into PREFIX/bin
	@$(MAKE) --no-print-directory build
	install -D -m 0755 $(CARGO_TARGET_DIR)/release/mainstay "$(DESTDIR)$(PREFIX)/bin/mainstay"
	ln -sf mainstay "$(DESTDIR)$(PREFIX)/bin/etcd"
	ln -sf mainstay "$(DESTDIR)$(PREFIX)/bin/etcdutl"
	@echo "Installed mainstay, etcd and etcdutl into $(DESTDIR)$(PREFIX)/bin"

deb: ## Make a Debian package in DIST (default ./dist)
	@$(MAKE) --no-print-directory build
	@scripts/deps.sh pack
	cargo build --release --locked -p mainstay-tidy --bin mainstay-notice
	@packaging/deb.sh "$(CARGO_TARGET_DIR)/release/mainstay" "$(DIST)"

# Only the last step, linking, differs from `make build`. Static glibc resolves names from /etc/hosts
# and by DNS by itself, with no file beside the binary.
archive: ## Make an archive of a static binary in DIST, with its checksum
	@$(MAKE) --no-print-directory build
	cargo build --release --locked -p mainstay-tidy --bin mainstay-notice
	cargo rustc --release --locked --bin mainstay -- -C target-feature=+crt-static
	@packaging/archive.sh "$(CARGO_TARGET_DIR)/release/mainstay" "$(DIST)"

container: archive ## Build a container image of the static binary with DOCKER (default docker)
	$(DOCKER) build -t "mainstay:$$(sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)" \
		-f packaging/Containerfile "$(DIST)"

bench: peers build ## Compare speed with real etcd, interleaved on this machine
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/mainstay bench compare

interop: peers build ## The long comparisons with real etcd: fuzz, etcdctl matrix, mixed clusters, kill loop, size (an hour)
	cargo build --release --locked -p mainstay-etcd-tests
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-fuzz --seeds 100 --requests 2000
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-matrix
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-mixed
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-killloop --minutes 10
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-size
	MAINSTAY_BIN=$(CARGO_TARGET_DIR)/release/mainstay $(CARGO_TARGET_DIR)/release/etcd-size --gib 5 --alone
