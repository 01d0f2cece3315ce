from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_every_target_and_nothing_else() -> None:
    targets = re.search(r"^\.PHONY: help (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"^make ([\w-]+)  ", shown, re.MULTILINE) == targets[1].split()
    assert len(shown.splitlines()) == len(targets[1].split())
