# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python

# Tracing needs root. Tests run under sudo find the caller's toolchains, keep every other cache in
# root's home, and leave no files of root's in the clone.
ifeq ($(shell id -u),0)
AS_ROOT = env GOTRACE_LIVE=1
else ifneq ($(shell command -v sudo),)
AS_ROOT = sudo -H env "PATH=$$PATH" GOTRACE_LIVE=1 PYTHONPYCACHEPREFIX=/root/.cache/gotrace/pycache \
	HYPOTHESIS_STORAGE_DIRECTORY=/root/.cache/gotrace/hypothesis PYTEST_ADDOPTS="-p no:cacheprovider" \
	GOTRACE_TOOLCHAINS="$${GOTRACE_TOOLCHAINS:-$${XDG_CACHE_HOME:-$$HOME/.cache}/gotrace/toolchains}" \
	GOTRACE_HOME="$$GOTRACE_HOME"
endif

.PHONY: help setup setup-test setup-kernels check test test-all lint test-real test-kernels \
	test-kernels-quick test-packages test-cluster test-install bench demo demo-fleet wheel bundle deb clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Install what is missing to run tools/* from this clone
	@tools/setup.sh

setup-test: ## Install what is missing for make test: linters, Go 1.15, 1.19, 1.21 to 1.27, gccgo
	@tools/setup.sh test
	@touch $(READY)

# Asking apt and pip whether all is there takes longer than it changes.
READY := .venv/ready-for-tests
$(READY): setup.cfg tools/setup.sh tests/toolchains.py tests/fetch_toolchains.py
	@$(MAKE) --no-print-directory setup-test

check: lint ## Check what needs no root, in a minute: style, types, and all but live and slow tests
	env -u GOTRACE_LIVE $(PYTHON) -m pytest -q -n logical --dist worksteal \
		-m "not live and not slow and not thorough"

test: setup-test lint ## Run lint, unit tests and, as root or with sudo, live tests: 25 minutes
	@$(AS_ROOT) $(PYTHON) -m tests.whole

test-all: setup-test lint ## The same with every Go release, seed and way of building
	@$(AS_ROOT) $(PYTHON) -m tests.whole --all

lint: $(READY) ## Check style and types
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	.venv/bin/clang-format --dry-run --Werror bpf/*.[ch]
	$(PYTHON) -m mypy

test-real: setup-test ## Try the tools on real programs, and harm none: an hour, fetches 500 MB
	$(AS_ROOT) GOTRACE_REAL=1 GOTRACE_COLD=1 $(PYTHON) -m pytest tests/real

# The architecture of guests and packages: this machine's, or ARCH=arm64.
FOR_ARCH = $(addprefix --arch ,$(filter amd64 arm64,$(ARCH)))

# Needs root for what apt installs only: guests are emulated, and their files unpacked.
setup-kernels:
	@tools/setup.sh kernels

test-kernels: setup-kernels ## Try the tools on Linux 5.10 to the newest, emulated: an hour; KERNELS="6.1 6.12" ARCH=arm64
	$(PYTHON) -m tests.kernels $(FOR_ARCH) $(KERNELS)

test-kernels-quick: setup-kernels ## The same on 6.1 and the newest, in eight minutes
	$(PYTHON) -m tests.kernels --quick $(FOR_ARCH) $(KERNELS)

test-packages: setup-test ## Try the Debian package, the image, and pages in a browser, the OpenTelemetry Collector: 20 minutes, 1 GB
	@tools/setup.sh packages
	$(AS_ROOT) GOTRACE_PACKAGES=1 GOTRACE_COLD=1 $(PYTHON) -m pytest tests/packages

test-cluster: setup-test ## Trace pods of a Kubernetes on this machine: ten minutes, at first half an hour and 700 MB
	$(AS_ROOT) GOTRACE_CLUSTER=1 GOTRACE_COLD=1 $(PYTHON) -m pytest tests/cluster

test-install: setup-test bundle deb ## Install without LLVM, and measure that: wheel, bundle, Debian package
	$(AS_ROOT) GOTRACE_PACKAGES=1 GOTRACE_COLD=1 $(PYTHON) -m pytest -s tests/packages/test_install.py

# As root, or with sudo: BCC creates the maps of what it compiles.
wheel: setup ## Make a wheel in dist/ that carries compiled BPF programs; the first takes minutes; ARCH=arm64 CACHE=/DIR
	@mkdir -p dist
	@$(AS_ROOT) $(if $(CACHE),XDG_CACHE_HOME="$(CACHE)") $(PYTHON) tools/package.py wheel $(FOR_ARCH)

bundle: wheel ## Make dist/gotrace-amd64.tar.gz: unpack it anywhere, and run what is in bin; ARCH=arm64
	@$(PYTHON) tools/package.py bundle $(WHEEL)

deb: wheel ## Make a Debian package in dist/; ARCH=arm64
	@$(PYTHON) tools/deb.py $(WHEEL) dist

MACHINE = $(or $(patsubst amd64,x86_64,$(patsubst arm64,aarch64,$(filter amd64 arm64,$(ARCH)))),$(shell uname -m))
WHEEL = $(shell ls -t dist/gotrace-*_$(MACHINE).whl | head -1)

bench: setup-test ## Measure the cost of tracing beside that of other tracers, as ratios
	$(AS_ROOT) $(PYTHON) -m tests.bench

demo: ## Trace an example server for a minute at most; installs Go where there is none
	@tools/setup.sh demo
	@$(PYTHON) tools/demo/demo.py

demo-fleet: ## Trace three servers with gotraced for Prometheus and a collector: two minutes, 120 MB
	@tools/setup.sh demo-fleet
	@$(PYTHON) tools/demo/fleet.py

clean: ## Remove what builds and tests leave in the clone; the caches in ~/.cache/gotrace stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find gotrace tests tools -name __pycache__ -prune -exec rm -rf {} +
