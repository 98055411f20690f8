# `make run` and `make test` need Rust, make, a C compiler and Python 3; the rest they bring.
# Every cargo call is --locked: what was tested is what is built, or the build fails.

CARGO ?= cargo

# Steps share cargo's build lock, so `make -j` would only shuffle their output.
.NOTPARALLEL:
.PHONY: help run test build fmt lint doc deny bench chaos attack soak histories mutants fuzz tools components clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Serve config/ from memory: gRPC on 8081, HTTP on 8080
	$(CARGO) run --release --locked -- serve --config-dir config

test: tools lint ## All that CI checks: formatting, clippy, every test, the documentation
	$(CARGO) test --locked
	$(MAKE) --no-print-directory doc

build: ## The release binary
	$(CARGO) build --release --locked

fmt: components ## Format the code in place
	$(CARGO) fmt

# Warnings are errors here and not in Cargo.toml, so that an editor shows them and goes on.
lint: components ## Formatting and clippy, without changing anything
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc: ## The documentation; a broken link is an error
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

# Not a part of `test`: the advisories come from the network and change without a commit. A part of it is
# the same check against advisories.yaml, which comes with a commit.
deny: ## Licences, sources and advisories of the dependencies
	@$(CARGO) deny --version >/dev/null 2>&1 || { \
		echo "cargo-deny is not installed: $(CARGO) install --locked cargo-deny" >&2; \
		echo "without it: $(CARGO) test --locked --test it dependencies" >&2; exit 1; }
	$(CARGO) deny --locked check

bench: tools ## The benchmarks, one of them with a real Envoy
	$(CARGO) bench --locked

# Minutes long, so no part of `test`; the short form of each scenario is. What is measured is what is
# released.
chaos: tools ## Break Redis in every way and write what came of it to docs/chaos.md
	$(CARGO) test --release --locked --test chaos -- --write docs/chaos.md

# As above: what is measured is what is released.
attack: tools ## Attack the doors in every way and write what others noticed to docs/hardening.md
	$(CARGO) test --release --locked --test attack -- --write docs/hardening.md

MINUTES ?= 10
TOPOLOGY ?= single
soak: tools ## Break Redis at random for MINUTES (10), TOPOLOGY single, sentinel or cluster
	$(CARGO) test --release --locked --test chaos -- --soak $(MINUTES) --topology $(TOPOLOGY)

CALLS ?= 1000000
SEED ?= 1
histories: tools ## Check histories of CALLS (1000000) concurrent calls in each place, made from SEED (1)
	$(CARGO) test --release --locked --test histories -- --calls $(CALLS) --seed $(SEED) \
		$(if $(FAULTS),--faults) $(if $(SEAMS),--seams)

MUTANTS ?=
mutants: ## Change the core in one small way after the other; its unit tests should notice each
	@CARGO="$(CARGO)" tests/tools/mutants $(MUTANTS)

# Needs cargo-fuzz and a nightly compiler; `make test` tries again what was found so far, with the compiler in use.
# Without a sanitizer: there is no unsafe code for it to watch. New bytes of interest are left in target/fuzz/corpus,
# those that break a law in fuzz/artifacts.
FUZZ_TARGETS := message headers rules xds mapping
fuzz: ## Look for MINUTES (10) each for bytes from outside that break a law
	@$(CARGO) +nightly --version >/dev/null 2>&1 || { \
		echo "no nightly compiler is installed: rustup toolchain install nightly" >&2; exit 1; }
	@$(CARGO) fuzz --version >/dev/null 2>&1 || { \
		echo "cargo-fuzz is not installed: $(CARGO) install --locked cargo-fuzz" >&2; exit 1; }
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target || exit; \
		$(CARGO) +nightly fuzz run --sanitizer none --target-dir target/fuzz $$target \
			target/fuzz/corpus/$$target fuzz/corpus/$$target -- \
			-max_len=1024 -timeout=10 -max_total_time=$$(($(MINUTES) * 60)) || exit; \
	done

tools: ## Install what the tests run against, if it is not there
	@tests/tools/install

# A minimal toolchain has neither, and not every machine has rustup to add them.
components:
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy

clean: ## Remove everything that was built or installed here
	$(CARGO) clean
	rm -rf target
