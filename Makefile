# make demo    a small load on an embedded PostgreSQL, from nothing
# make test    the whole suite, from nothing, two files at a time (WORKERS=0: one after the other)
# make check   lint, types, import contract
# make format  let ruff put the sources in order
# make bench   pgqueue beside nine peers, everything: some two hours, tables and charts in bench/results
# make bench-quick  pgqueue, pgqueuer and graphile-worker, the main figures: under three minutes
# make screenshots  those of the README, anew; needs Chromium
# make clean   remove the virtualenv and what the tools left behind
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 2
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check format bench bench-quick screenshots clean

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

bench: $(READY)
	$(BIN)/python -m bench all $(ARGS)

bench-quick: $(READY)
	$(BIN)/python -m bench quick $(ARGS)

screenshots: $(READY)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
