PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs notebook nightly dist check-install browser clean

demo: .venv/installed
	$(BIN)/spgd evaluate -n 200

# no cache: it forgets that the order of imports depends on which files there are
test: .venv/installed-dev browser
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@ls -A > .venv/before
	$(BIN)/python -m pytest -n 2 -q -p no:cacheprovider
	@ls -A | diff .venv/before - || { echo "a test has left these files behind in the checkout"; exit 1; }

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "pages in site/index.html"

# runs the tutorial again and stores what it shows
notebook: .venv/installed-dev
	$(BIN)/python scripts/run_notebook.py

# the wheel and the sdist, in dist/
dist: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

# the wheel in empty environments, alone and with each extra: `make check-install PYTHONS="python3.11 python3.13"`
PYTHONS ?= $(PYTHON)
check-install: dist
	$(BIN)/python scripts/check_install.py dist/*.whl --python $(PYTHONS)

nightly: .venv/installed-dev
	$(BIN)/python -m pytest -n 2 -q -m nightly

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ .venv/installed

.venv/installed-docs: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

# for the tests of the page; where no browser can be installed they are skipped
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	echo "no browser could be installed: its tests are skipped"

clean:
	rm -rf .venv
