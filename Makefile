# The two commands of the README are `make demo` and `make test`; nothing but Python 3.11+ and a package index is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow check bench clean help

help:
	@grep -E '^[a-z]+:.*#' $(MAKEFILE_LIST) | sed 's/:.*#/ -/'

$(BIN)/sordino: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,oracle]'
	@touch $(BIN)/sordino

demo: $(BIN)/sordino # install, then run the default federation: real digits, 20 clients, private
	rm -rf runs/demo
	$(BIN)/sordino run --out runs/demo
	$(BIN)/sordino privacy verify runs/demo

test: $(BIN)/sordino # the fast suite, under two minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

slow: $(BIN)/sordino # the torture and statistics that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

check: $(BIN)/sordino # format, lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BIN)/sordino # ratios against a plain PyTorch loop, in the same run
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rounds.py

clean: # remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
