# make demo    a small load on an embedded PostgreSQL, from nothing
# make test    the whole suite, from nothing, three files at a time (WORKERS=0: one after the other)
# make check   lint, types, import contract
# make format  let ruff put the sources in order
# make mutants  make defects in a copy of this tree: does a test notice each?
# make bench   pgqueue beside nine peers, everything: some two hours, tables and charts in bench/results
# make bench-quick  pgqueue, pgqueuer and graphile-worker, the main figures: under three minutes
# make chaos   kills, pauses, crashes, broken networks, a full disk; then a verdict (ARGS="--seed 7 --jobs 100000 …")
# make audit   what is installed here against the database of known weaknesses; needs pypi.org or api.osv.dev
# make screenshots  those of the README, anew; needs Chromium
# make clean   remove the virtualenv and what the tools left behind
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check format mutants bench bench-quick chaos audit screenshots clean

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
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

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
	$(BIN)/python -m bench all $(ARGS)

bench-quick: $(READY)
	$(BIN)/python -m bench quick $(ARGS)

chaos: $(READY)
	@$(BIN)/python -m tests.chaos.run $(ARGS)

# By a virtualenv of its own, so that the tool is not part of what it looks at. AUDIT=osv asks the other database. Strict,
# because a mirror without that database would otherwise mean that nothing is known: not the same as nothing is wrong.
AUDIT ?= pypi
audit: $(READY)
	@test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit \
	  && $(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	@$(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable > $(VENV)/audit/installed.txt
	@$(VENV)/audit/bin/pip-audit --strict --vulnerability-service $(AUDIT) --progress-spinner off \
	  --no-deps --disable-pip --requirement $(VENV)/audit/installed.txt \
	  || { echo "not audited, or something found"; exit 1; }

screenshots: $(READY)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
