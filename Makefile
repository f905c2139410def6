# The README begins with `make demo`, CONTRIBUTING.md with `make test`; both need only Python 3.11+ and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: fitting demo test slow check docs bench size clean help

help:
	@grep -E '^[a-z]+:.*#' $(MAKEFILE_LIST) | sed 's/:.*#/ -/'

fitting: # is there a Python that sordino runs on, and was .venv made by it?
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "sordino needs Python 3.11 or newer, and $(PYTHON) is none. Name one: make demo PYTHON=python3.12"; exit 2; }
	@if [ -e $(VENV) ]; then \
	  $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
	    "$(VENV) was made by a Python that is too old or gone. Remove it with \`make clean\`, then try again."; exit 2; }; \
	  if [ "$(origin PYTHON)" = "command line" ] && [ "$$($(BIN)/python -V)" != "$$($(PYTHON) -V)" ]; then echo \
	    "$(VENV) was made by $$($(BIN)/python -V), and you ask for $$($(PYTHON) -V). Remove it with \`make clean\`," \
	    "then try again."; exit 2; fi; \
	fi

$(BIN)/sordino: pyproject.toml constraints.txt | fitting # the core: all that a run needs
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(VENV)/dev: $(BIN)/sordino # and what checks, tests and documents it
	$(INSTALL) '.[dev]'
	@touch $@

demo: $(BIN)/sordino # install the core, run the default federation (real digits, 20 clients, private), write its report
	rm -rf runs/demo
	$(BIN)/sordino run --out runs/demo
	$(BIN)/sordino privacy verify runs/demo
	$(BIN)/sordino report runs/demo
	@echo "To call it \`sordino\` in this shell: source $(VENV)/bin/activate (or write $(BIN)/sordino)"

test: $(VENV)/dev # the fast suite
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

slow: $(VENV)/dev # the torture and statistics that take minutes; many wait, so four at a time
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 -m "slow or hypothesis" --durations=40

check: $(VENV)/dev # format, lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/dev # the site, in docs/_build; a warning is an error
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/trees docs docs/_build/html
	@touch docs/_build/whole
	@echo "docs/_build/html/index.html"

bench: $(BIN)/sordino # ratios against a plain PyTorch loop, in the same run
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rounds.py

size: $(BIN)/sordino # lines of the source by room; then packages and megabytes of the core, in a fresh environment
	$(BIN)/python docs/house_size.py
	$(PYTHON) benchmarks/install_size.py

clean: # remove the environment, the built site and caches
	rm -rf $(VENV) docs/_build docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
