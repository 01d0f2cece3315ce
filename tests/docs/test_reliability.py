"""docs/reliability.md names tests that exist, for every case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.chaos.checker import INVARIANTS

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "reliability.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)


def test_every_case_of_the_catalogue_has_its_row() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 47))


@pytest.mark.parametrize(("what", "shown_by"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_case_names_a_test_that_exists_or_says_why_there_is_none(what: str, shown_by: str) -> None:
    if reason := re.fullmatch(r"not tested: (.+)", shown_by):
        assert len(reason[1]) > 10
        return
    for name in shown_by.split("<br>"):
        path, test = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", name).groups()  # type: ignore[union-attr]
        found = {each.name for each in ast.walk(ast.parse((TESTS / path).read_text())) if hasattr(each, "name")}
        assert test in found


def test_every_invariant_that_the_checker_knows_is_said_here() -> None:
    assert re.findall(r"^\| (I\d+) \|", TEXT, re.MULTILINE) == list(INVARIANTS)


def test_every_test_and_folder_that_the_text_names_exists() -> None:
    for path in re.findall(r"`(?:tests/)?((?:\w+/)*\w+(?:\.py)?)(?:::\w+)?`", TEXT):
        if "/" in path:
            assert (TESTS / path).exists(), path
