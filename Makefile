# `make demo` and `make test` start from nothing: they make .venv, install, and run.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint install clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/sightline demo

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	# One thread a worker: two workers of two threads each get in each other's way on two cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

clean:
	rm -rf .venv demo .mypy_cache .pytest_cache .ruff_cache
