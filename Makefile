# `make demo` and `make test` start from nothing: they make .venv, install, and run.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint docs browser install clean

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

# Tests of the search page run in Debian's Chromium; where it cannot be installed they are skipped, and say so.
browser:
	@test -x /usr/bin/chromium || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get install --yes --no-install-recommends chromium; } || echo "no Chromium: tests of the search page are skipped"

test: lint browser
	# One thread a worker: two workers of two threads each get in each other's way on two cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

docs: install
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_data_flow.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/test_docs.py tests/test_shell_blocks.py tests/test_readme.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html; search needs a server: $(BIN)/python -m http.server -d site"

clean:
	rm -rf .venv demo site .mypy_cache .pytest_cache .ruff_cache
