# treekill-run: `make` builds, `make test` checks everything, `sudo make install` installs.
# `make help` lists the targets. PREFIX (/usr/local) and DESTDIR say where to install, and TIMEOUT_LINK=1 that
# it is to be called `timeout` there too; CARGO_TARGET_DIR says where to build.

PREFIX ?= /usr/local
DESTDIR ?=
TIMEOUT_LINK ?= 0
export CARGO ?= cargo
INSTALL ?= install

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/release/treekill-run
STATIC_BIN := $(TARGET_DIR)/static/treekill-run
MUSL_BIN := $(TARGET_DIR)/musl/treekill-run

BINDIR := $(DESTDIR)$(PREFIX)/bin
MANDIR := $(DESTDIR)$(PREFIX)/share/man/man1
BASHDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

.DEFAULT_GOAL := build
.PHONY: build musl-std static test test-musl chaos soak faults gnu-check model fuzz deps msrv miri sanitize demo \
	bench bench-check bench-picture layout install uninstall dist dist-check man completions docs \
	places test-kernels test-kernel-5.10 test-systemd clean help

build: ## build the release binary, target/release/treekill-run, static and with musl where that can be
	tests/dist/build best '$(BIN)'

musl-std: ## fetch or build the std that a build with musl needs
	tests/dist/build std

static: ## build a static binary with the system's own C library, target/static/treekill-run
	tests/dist/build static '$(STATIC_BIN)'

test: ## formatting, lints, docs, every test as this user and, when root, as an ordinary user
	tests/run-tests

test-musl: ## the same on the static release build with musl alone
	tests/dist/build musl '$(MUSL_BIN)'
	TREEKILL_TEST_PROGRAM='$(abspath $(MUSL_BIN))' tests/run-tests

chaos: ## random trees under stress on each backend; about fifteen minutes
	tests/endurance chaos

soak: ## five minutes of mixed runs, after which everything is as it was before
	tests/endurance soak

# The programs that the tests run are examples, which `--test` alone does not build; the last line is the walk's own.
faults: ## a fault at every system call of ours; TREEKILL_FAULTS="cgroup keeper ppoll" tries only those of such names
	$(CARGO) build --example fixture
	TREEKILL_FAULTS="$$TREEKILL_FAULTS" $(CARGO) test --test faults -- --nocapture | \
		awk '{ print; fflush() } /^points / { figures = $$0 } END { print figures; exit figures !~ /, 0 failed$$/ }'

gnu-check: ## ten thousand command lines through us and the machine's GNU timeout
	$(CARGO) build --release --example fixture
	TREEKILL_GNU_LINES=$${TREEKILL_GNU_LINES:-10000} \
		$(CARGO) test --release --test gnu -- --nocapture

model: ## two hundred thousand random runs of the state machine: invariants, transitions
	TREEKILL_MODEL_SEQUENCES=$${TREEKILL_MODEL_SEQUENCES:-200000} tests/figures \
		$(CARGO) test --lib supervisor::tests::walk -- --nocapture

fuzz: ## libFuzzer over what is read from outside; TREEKILL_FUZZ_SECONDS each (nightly)
	tests/fuzz/run

deps: ## licences, duplicates and advisories of all that is built in
	tests/deps

msrv: ## build and unit tests with the oldest Rust that Cargo.toml names
	tests/msrv

miri: ## the modules without system calls under Miri (nightly)
	tests/miri

sanitize: ## unit and integration tests with the address sanitizer (nightly)
	tests/sanitize

demo: build ## a daemon that timeout(1) leaves alive and treekill-run does not
	tests/demo.sh '$(BIN)'

bench: ## what a run costs, beside GNU timeout and other wrappers; best on a machine at rest
	tests/bench/run

bench-check: ## the same, and fail if a gate is not met
	tests/bench/run --check

bench-picture: build ## what a picture of 100 and of 5000 processes costs, beside the bounds
	tests/bench-picture.sh '$(BIN)'

layout: build ## write tests/dist/run.ld again: which functions of the program stand side by side
	$(CARGO) build --quiet --release --example bench
	$(TARGET_DIR)/release/examples/bench layout '$(BIN).symbols' >tests/dist/run.ld.new
	mv tests/dist/run.ld.new tests/dist/run.ld

# Installing needs no cargo when the binary is there, so `make && sudo make install` works.
install: $(BIN) ## install binary, manual and completions below PREFIX
	$(INSTALL) -D -m 755 '$(BIN)' '$(BINDIR)/treekill-run'
	$(INSTALL) -D -m 644 man/treekill-run.1 '$(MANDIR)/treekill-run.1'
	$(INSTALL) -D -m 644 completions/treekill-run.bash '$(BASHDIR)/treekill-run'
	$(INSTALL) -D -m 644 completions/_treekill-run '$(ZSHDIR)/_treekill-run'
	$(INSTALL) -D -m 644 completions/treekill-run.fish '$(FISHDIR)/treekill-run.fish'
ifneq ($(filter-out 0 no,$(TIMEOUT_LINK)),)
	@# Another timeout that is there already stays.
	[ "$$(readlink '$(BINDIR)/timeout')" = treekill-run ] || ln -s treekill-run '$(BINDIR)/timeout'
endif

$(BIN):
	tests/dist/build best '$@'

uninstall: ## remove what install put there
	rm -f '$(BINDIR)/treekill-run' '$(MANDIR)/treekill-run.1' '$(BASHDIR)/treekill-run' \
		'$(ZSHDIR)/_treekill-run' '$(FISHDIR)/treekill-run.fish'
	[ "$$(readlink '$(BINDIR)/timeout')" != treekill-run ] || rm '$(BINDIR)/timeout'

dist: ## pack the release: tarballs, .deb, wheels, npm packages, bills of materials and checksums, target/dist
	tests/dist/pack.py '$(TARGET_DIR)/dist'

dist-check: ## try each package as its users would, and whether the same sources give the same bytes (ten minutes)
	tests/dist/check

man completions: ## generate them again from the command line's definition
	$(CARGO) run --quiet --example generate -- $@

docs: ## generate manual, completions and the tables of README.md again
	$(CARGO) run --quiet --example generate

# What depends on the kernel most; `tests/lab/test-kernel VERSION` alone runs everything.
KERNEL_TESTS := boundary limits usage picture escapes fallbacks leftovers status timeouts

test-kernels: ## the tests of the boundary on Linux 5.10, 6.1, 6.12 and 7.x in QEMU (root, Debian host)
	for version in 5.10 6.1 6.12 7; do tests/lab/test-kernel $$version $(KERNEL_TESTS) || exit; done

places: ## which backend works where, and how many of a tree are left there (root, Debian host)
	tests/lab/places

test-kernel-5.10: ## all integration tests on Linux 5.10, which has no cgroup.kill
	tests/lab/test-kernel 5.10

test-systemd: ## the tests of systemd with its versions 247, 252 and 257 (root, Debian host)
	tests/run-tests --systemd

clean: ## remove what was built
	$(CARGO) clean

help: ## this list
	@sed -n 's/^\([a-z0-9.-]*\)\( [a-z]*\)\{0,1\}:.*## \(.*\)/\1\2|\3/p' $(MAKEFILE_LIST) | \
		awk -F'|' '{ printf "  %-18s %s\n", $$1, $$2 }'
