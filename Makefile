# Needs Python >= 3.11, pip and make; everything else goes into .venv.
#   make demo            see it work          make test            run the tests (both with PyTorch: TORCH=1)
#   make check           lint, format, types  make bench           the table of docs/benchmarks.md
#   make docs            the site, in site/   make clean           remove what was made
#   make wheel           build and try it     make mutants         wrong numbers that no test notices

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
TORCH_VERSION := 2.13.0
RAY    ?= $(TORCH)

# Without bytecode every process that a test starts would compile all of Etude again.
unexport PYTHONDONTWRITEBYTECODE

# A stamp per set of packages; all but the first two are renewed when pyproject.toml changes. Each stands on the one
# before, so that one pip runs at a time even under `make -j`.
VENV_STAMP  := $(VENV)/.made
TORCH_STAMP := $(VENV)/.torch-$(TORCH_VERSION)
BASE_STAMP  := $(VENV)/.base
DEV_STAMP   := $(VENV)/.dev
RAY_STAMP   := $(VENV)/.ray
DOCS_STAMP  := $(VENV)/.docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo install test browser check format bench mutants docs wheel clean

help:
	@sed -n '2,5s/^#   //p' Makefile

$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit("etude needs Python 3.11 or newer; try make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# PyTorch comes first and alone, so that nothing else has a say in its version.
$(TORCH_STAMP): $(VENV_STAMP)
	@echo "installing torch==$(TORCH_VERSION) into $(VENV)" >&2
	@$(PIP) torch==$(TORCH_VERSION)
	@touch $@

$(BASE_STAMP): pyproject.toml $(VENV_STAMP) $(if $(TORCH),$(TORCH_STAMP))
	@echo "installing etude into $(VENV)" >&2
	@$(PIP) --editable .
	@touch $@

$(DEV_STAMP): $(BASE_STAMP)
	@$(PIP) --editable '.[dev]'
	@touch $@

# Not every Python has a Ray: without one its tests are skipped, and say so.
$(RAY_STAMP): $(DEV_STAMP)
	@$(PIP) --editable '.[ray]' || echo "Ray could not be installed: its tests will be skipped" >&2
	@touch $@

$(DOCS_STAMP): $(BASE_STAMP)
	@$(PIP) --editable '.[docs]'
	@touch $@

demo: $(BASE_STAMP)
	$(BIN)/etude demo $(if $(TORCH),--torch)

# Tests of pages need a Chromium. Where apt can bring one it does; elsewhere they are skipped, and say so.
browser:
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium, for the tests of pages" >&2; \
	  { timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo "chromium could not be installed: tests of pages will be skipped" >&2; \
	else echo "no Chromium here: tests of pages will be skipped" >&2; fi

# What tests and checks need, so that it can come beside something else.
install: $(DEV_STAMP) $(if $(RAY),$(RAY_STAMP))

# -rs: what was skipped, and why; -n: one process more than cores, four at most; a folder of tests stays in one
test: $(DEV_STAMP) $(if $(RAY),$(RAY_STAMP))
	$(BIN)/python -m pytest -rs -n auto --maxprocesses 4 $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One at a time; what ran with the same sources is not run again. Outputs are kept in out/release.
bench: $(DEV_STAMP)
	@$(BIN)/python benchmarks/release.py run
	@$(BIN)/python benchmarks/release.py table --write

# Mutants of sources by seed, each run against the tests that cover its line; ROOM="serve fleet" names folders of tests.
N    ?= 40
SEED ?= 1
ROOM ?= serve fleet search
mutants: $(DEV_STAMP)
	@$(BIN)/python tools/mutate.py $(ROOM) --count $(N) --seed $(SEED) $(ARGS)

# docs/generate.py writes the pages that are made from the code, docs/pictures.py draws the pictures.
docs: $(DOCS_STAMP)
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/pictures.py
	@$(BIN)/python docs/notebook.py
	@rm -rf site
	$(BIN)/zensical build --clean --strict
	@rm -f site/*.py
	@$(BIN)/python docs/check_site.py site

# Built in an environment of its own, and tried in an empty one of every Python that is found.
wheel:
	@$(PYTHON) benchmarks/try_wheel.py --out dist

clean:
	rm -rf $(VENV) site build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
