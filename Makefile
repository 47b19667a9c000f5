# Every target creates .venv and installs into it first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-gpu lint docs browser install clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/sightline demo

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Tests of the search page use Debian's Chromium; without it they are skipped.
browser:
	@test -x /usr/bin/chromium || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get install --yes --no-install-recommends chromium; } || echo "no Chromium: tests of the search page are skipped"

test: lint browser
	# One thread for each of two workers. The order is random (pytest-randomly); the header prints its seed.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

# On a machine with CUDA; elsewhere all are skipped. The same tests run on a pretended device in `make test`.
test-gpu: install
	$(BIN)/python -m pytest tests/gpu -m gpu

docs: install
	for page in losses reference data_flow architecture; do $(BIN)/python docs/make_$$page.py || exit 1; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html; its search box needs a server: $(BIN)/python -m http.server -d site"

clean:
	rm -rf .venv demo site .mypy_cache .pytest_cache .ruff_cache
