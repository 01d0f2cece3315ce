"""What every file in sql/functions promises, and that Python has a call for each public one."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgqueue import database, schema

FILES = [path for path in schema.sql_files() if path.parent.name == "functions"]
INTERNAL = {"wake", "ensure_lane", "held_key"}
OWN = {"clock", "backend_pid", "server_version"}  # of PostgreSQL itself
VIEWS = {
    name
    for path in schema.sql_files()
    if path.parent.name == "views"
    for name in re.findall(r"^create or replace view pgqueue\.(\w+) as", path.read_text(), re.MULTILINE)
}


def public(path: Path) -> bool:
    text = path.read_text()
    comment = re.search(r"^comment on function .*$", text, re.MULTILINE)
    assert comment, path
    return not (
        "Not for users" in comment[0]
        or "not for users" in text.split("create or replace")[0]
        or path.stem.startswith("check_")
        or path.stem in INTERNAL
    )


def test_there_are_files() -> None:
    assert len(FILES) > 35


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_defines_one_function_named_like_the_file(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^create (?:or replace )?function (\S+?)\(", text, re.MULTILINE) == [f"pgqueue.{path.stem}"]
    assert re.findall(r"^comment on function (\S+) is", text, re.MULTILINE) == [f"pgqueue.{path.stem}"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_it_moves_locks_and_raises_and_who_calls_it(path: Path) -> None:
    header = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("--"))
    header = header.split("create or replace")[0]
    assert header.startswith(f"-- {path.stem}: ")
    for word in ("Moves", "Locks", "[Rr]aises", "alled by"):
        assert re.search(rf"\b{word}" if word[0].isupper() else word, header), word


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_function_takes_the_beginning_of_the_callers_transaction_for_now(path: Path) -> None:
    code = re.sub(r"--.*", "", path.read_text())
    assert not re.search(r"\b(now\(\)|current_timestamp|transaction_timestamp|localtimestamp)", code, re.IGNORECASE)


def test_python_has_a_call_for_every_public_function_and_no_other() -> None:
    calls = {
        name
        for name, found in vars(database).items()
        if inspect.isfunction(found)
        and not name.startswith("_")
        and found.__module__ == database.__name__
        and str(inspect.signature(found).return_annotation).startswith("Call[")
    }
    assert calls - VIEWS - OWN == {path.stem for path in FILES if public(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_call_names_the_function_in_its_statement(path: Path) -> None:
    if public(path):
        source = inspect.getsource(getattr(database, path.stem))
        assert f"pgqueue.{path.stem}(" in source or re.search(rf'_seen\(\s*"{path.stem}"', source)


@pytest.mark.parametrize("module", ["pgqueue", "pgqueue.cli", "pgqueue.child", "pgqueue.beat"])
def test_a_process_that_works_or_enqueues_does_not_carry_what_only_migrations_need(module: str) -> None:
    code = f"import sys, {module}; print(*{{'alembic', 'sqlalchemy', 'croniter'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
