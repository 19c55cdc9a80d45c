# Every target sets up .venv first if it has to. `make demo` and `make test` are the two commands to know.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false
export OPENREWARD_DISABLE_UPDATE_CHECK = 1

.PHONY: setup demo example test lint docs bench clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/multienv demo $(ARGS)

example: setup
	$(BIN)/multienv train examples/three_catalogues.yaml --offline
	$(BIN)/multienv report three-catalogues

# Tests that measure time, or play with short limits, have the machine to themselves; the others share it.
TIMED := $(addprefix tests/test_,$(addsuffix .py,arguments async_grpo exit faults horizons hostile http keep_alive limits \
	sessions spelling testing trainer typed_arguments))

test: setup
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n auto --dist worksteal $(addprefix --ignore=,$(TIMED))
	$(BIN)/python -m pytest $(TIMED)
endif

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python benchmarks/run_all.py $(ARGS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
