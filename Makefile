# One virtual environment beside the code; every target makes it first if it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test lint bench setup wheel clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

run: setup ## evaluate the demo study: grid -> frontier -> report
	$(BIN)/python -m pipelines.sweep experiment=demo

test: setup ## the whole test suite, on all cores
	$(BIN)/python -m pytest -q -n 2

lint: setup ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## points per second against the machine's own limits
	$(BIN)/python -m pipelines.bench

wheel: setup ## a wheel with conf/ inside
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache
