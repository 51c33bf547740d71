# `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready

.DEFAULT_GOAL := help
.PHONY: help demo postgresql test check chaos bench bench-peers docs clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	@touch $@

demo: $(READY) ## Kill an agent several times and let it finish
	$(BIN)/holdfast demo

# Tests and benchmarks use the machine's PostgreSQL, which is stock; without it an embedded one.
postgresql:
	@if [ ! -d /usr/lib/postgresql ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes postgresql; } >/dev/null 2>&1 \
		|| echo "PostgreSQL could not be installed: the tests use the embedded one"; \
	fi

# One worker more than two cores: many tests wait for processes, timeouts and disks.
test: $(READY) postgresql ## Check and run all tests
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: $(READY) ## Check lint, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(READY) ## Run the long crash, chaos, power-loss and property tests (hours)
	HOLDFAST_CHAOS=1 HOLDFAST_TEST_THOROUGH=1 HOLDFAST_LONG_TESTS=1 HOLDFAST_POWER_LOSS_ROUNDS=60 HOLDFAST_CRASH_ROUNDS=40 \
		$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 7200 \
		tests/chaos tests/crash tests/stores tests/checkpoint tests/fanout

bench: $(BENCH_READY) postgresql ## Measure against the raw limits of this machine and compare with the baseline (minutes)
	$(BIN)/python -m bench --guard

bench-peers: $(BENCH_READY) postgresql ## Measure against the peers, each in its own environment, and write the report (hours)
	$(BIN)/python -m bench --peers --report

docs: $(READY) ## Build the documentation into site/
	$(BIN)/mkdocs build --quiet --strict

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
