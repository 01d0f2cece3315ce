"""Makes each defect of mutants.py in a copy of this tree, and runs the tests that should notice: `make mutants`.

A defect that no test notices survives; then a test is missing. One line for each; the exit code is 1 if one survived,
or could not be made any more. The checkout is not touched. `make mutants ARGS="--jobs 2 sweep claim"` runs those whose
names contain one of the words, two at a time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from pgqueue import embedded
from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
COPIED = ("pgqueue", "sql", "migrations", "tests", "pyproject.toml")
# Enough for a defect; the suite itself takes longer walks.
LESS = {"PGQUEUE_MODEL_STEPS": "6000", "PGQUEUE_MODEL_SHRINK": "0", "PGQUEUE_FLOW_SEEDS": "6", "PGQUEUE_FUZZ": "1000"}
SECONDS = 900


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    verdict: str  # killed, SURVIVED, LOST (its old text is gone) or BROKEN (nothing could be tested)
    by: str
    seconds: float

    @property
    def good(self) -> bool:
        return self.verdict == "killed"


def copy_tree(folder: Path) -> None:
    for name in COPIED:
        if (source := ROOT / name).is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def run(mutant: Mutant, folder: Path, server_url: str) -> Result:
    file = folder / mutant.file
    whole = file.read_text()
    if whole.count(mutant.old) != 1:
        return Result(mutant, "LOST", f"its old text stands {whole.count(mutant.old)} times in {mutant.file}", 0)
    began = time.monotonic()
    file.write_text(whole.replace(mutant.old, mutant.new))
    environment = os.environ | LESS | {"PYTHONPATH": str(folder), "PGQUEUE_TEST_DATABASE_URL": server_url}
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "90",
                   *mutant.tests.split()]  # fmt: skip
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
                                  check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return Result(mutant, "killed", "does not end", time.monotonic() - began)
    finally:
        file.write_text(whole)
    took = time.monotonic() - began
    failed = re.findall(r"^FAILED \S*?([^/\s]+::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return Result(mutant, "killed", failed[0], took)
    if done.returncode == 0:
        return Result(mutant, "SURVIVED", mutant.tests, took)
    return Result(mutant, "BROKEN", (done.stdout + done.stderr).strip()[-500:], took)


@contextmanager
def server() -> Iterator[str]:
    if given := os.environ.get("PGQUEUE_TEST_DATABASE_URL"):
        yield given
        return
    settings = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "4GB", "max_prepared_transactions": "5",
                "max_connections": "200"}  # fmt: skip
    with embedded.temporary(settings=settings) as started:
        yield started.url()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--from", dest="first", type=int, default=0, help="begin with this one, counted from 0")
    parser.add_argument("--count", type=int, default=len(MUTANTS), help="so many of them")
    given = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not given.words or any(word in each.name for word in given.words)]
    chosen = chosen[given.first : given.first + given.count]
    width = max(len(each.name) for each in MUTANTS)
    folders: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="pgqueue-mutants-") as temporary, server() as url:
        for number in range(given.jobs):
            folder = Path(temporary) / str(number)
            copy_tree(folder)
            folders.put(folder)

        def one(mutant: Mutant) -> Result:
            folder = folders.get()
            try:
                found = run(mutant, folder, url)
            finally:
                folders.put(folder)
            print(f"{mutant.name:{width}}  {found.verdict:8}  {found.seconds:5.0f} s  {found.by}", flush=True)
            return found

        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(one, chosen))
    good = sum(each.good for each in results)
    seconds = sum(each.seconds for each in results)
    print(f"\n{good} of {len(results)} killed, in {seconds:.0f} s")
    for each in results:
        if not each.good:
            print(f"{each.verdict}: {each.mutant.name} ({each.mutant.file})\n  {each.by}")
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
