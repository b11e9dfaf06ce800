# Everything on a fresh machine: `make run` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export OMP_NUM_THREADS = 1

.PHONY: run test test-docs test-all installed containers exhaustive faults soak hostile poison check bench bench-peers docs clean

run: $(VENV)/.installed
	$(BIN)/fedmosaic run

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal

test-docs: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/docs tests/papers -n auto --dist worksteal -m docs

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m full

installed: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.installed

containers: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/containers -m containers -rs

exhaustive: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m exhaustive

faults: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench.faults

soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench.soak $(if $(MODE),--mode $(MODE) --rounds 100)

hostile: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench.hostile

poison: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench.poison
	$(BIN)/python -m tests.bench.hostile --table

docs: $(VENV)/.installed-docs # into build/site; it downloads nothing
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python -m tests.bench --out bench.json

bench-peers: $(VENV)/.installed
	$(BIN)/python -m tests.bench.peers --out tests/bench/scale.json

clean:
	rm -rf $(VENV) .bench .containers build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# torch first and by itself, so that pip takes a build for this machine and no other
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'torch>=2.11,<2.14'
	$(BIN)/python -m pip install --quiet --editable '.[sim,report]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@
