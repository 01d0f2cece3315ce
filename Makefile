# make demo    a small load on an embedded PostgreSQL, from nothing
# make test    the whole suite, from nothing, two files at a time (WORKERS=0: one after the other)
# make check   lint, types, import contract
# make format  let ruff put the sources in order
# make mutants  make defects in a copy of this tree: does a test notice each?
# make bench   speed, what an old snapshot costs, and pgqueue beside a peer
# make bench-quick  a short form of it: a few minutes
# make screenshots  those of the README, anew; needs Chromium
# make clean   remove the virtualenv and what the tools left behind
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 2
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check format mutants bench bench-quick screenshots clean

help:
	@grep '^# make ' Makefile | sed 's/^# //'

# Made anew when the dependencies change.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "pgqueue needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "Python's venv module is missing: install it (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Installing pgqueue and its tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,asyncpg,web]' --group dev
	@touch $@

demo: $(READY)
	@$(BIN)/pgqueue demo

test: $(READY)
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(READY)
	$(BIN)/python -m tests.mutants.run $(ARGS)

bench: $(READY)
	$(BIN)/python -m bench.core rate $(ARGS)
	$(BIN)/python -m bench.core snapshot
	$(BIN)/python -m bench.worker all

bench-quick: $(READY)
	$(BIN)/python -m bench.core snapshot --rounds 1 --jobs 100000
	$(BIN)/python -m bench.worker all --rounds 1 --jobs 20000

screenshots: $(READY)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
