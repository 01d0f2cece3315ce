"""The benchmark runs: on pgqueue alone, tiny. How fast it is nobody asks here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import chart, report
from bench.contest import FIELD, ask_redis, install, redis_server
from bench.report import Results

ROOT = Path(__file__).parents[2]
SIZES = {
    "rounds": 1, "trials": 1, "seconds": 0.3, "most-jobs": 600, "snapshot-jobs": 500, "snapshot-seconds": 1,
    "mixed-seconds": 2, "settle-seconds": 0.2,
}  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_tiny_run_measures_pgqueue_and_writes_tables_and_charts(server_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "drain", "snapshot", "mixed", "--peers"]
    done = subprocess.run(
        [*command, "--into", tmp_path, *(word for name, size in SIZES.items() for word in (f"--{name}", str(size)))],
        cwd=ROOT, env={**os.environ, "DATABASE_URL": server_url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["failures"] == []
    for name in ("drain", "bulk", "wal", "disk", "snapshot after", "mixed_ratio"):
        assert results["figures"][name]["pgqueue"][0] > 0, name
    assert "| pgqueue |" in (tmp_path / "table.md").read_text()
    for name in ("bench-drain.svg", "bench-snapshot.svg", "bench-mixed-rate.svg"):
        ElementTree.parse(tmp_path / name)  # noqa: S314


def some_results() -> Results:
    results = Results(about={"date": "2026-11-05", "options": {}, "versions": {"pgqueue": "1"}, "rounds": 2})
    for rate in (90.0, 110.0):
        results.add("pgqueue", {"drain": rate, "idle p50": 2.0})
        results.add("procrastinate", {"drain": rate / 100, "idle p50": 3.0})
    return results


def test_a_ratio_above_one_is_always_in_our_favour() -> None:
    throughput, waits, *_ = report.sections(some_results())
    assert report.rows(some_results(), throughput)[1][1] == ["procrastinate", "1 ±10 % (100.00×)"]
    assert report.rows(some_results(), waits)[1][1] == ["procrastinate", "3 ±0 % (1.50×)"]


def test_goals_say_what_was_reached_and_what_was_not() -> None:
    results = some_results()
    results.add("celery", {"drain": 50.0})
    reached = {line[1]: line[3] for line in report.goals(results)}
    assert reached["≥ 60 × procrastinate"] == "yes"
    assert reached["≥ 40 × celery"] == "**no**"


def test_a_report_goes_between_the_markers_and_another_one_replaces_it(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n\n{report.BEGIN}\n{report.END}\n\nafter\n")
    for _ in range(2):
        report.document(some_results(), page, tmp_path)
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert text.count("### Throughput") == 1
    assert "![" in text
    assert (tmp_path / "bench-drain.svg").exists()


def test_charts_stand_zeros_and_names_with_special_characters() -> None:
    assert ElementTree.fromstring(chart.bars("a < b", "&", {"<pgqueue>": 0.0})) is not None  # noqa: S314
    assert ElementTree.fromstring(chart.lines("none", "", {"x": []}, [(0, 1)])) is not None  # noqa: S314


def test_the_page_names_every_contestant_and_every_contestant_has_its_script() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert report.BEGIN in page
    assert report.END in page
    for who in FIELD:
        assert who.script.exists()
        assert who.name == "pgqueue" or f"bench/peers/{who.script.name}" in page


def test_a_peer_that_cannot_run_here_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    told: list[str] = []
    assert install(["celery"], tmp_path, False, told.append) == []
    assert told == ["celery is left out: there is no Redis: install redis-server, or set REDIS_URL"]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_redis_of_our_own_says_how_durable_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    with redis_server(durable=True) as url:
        assert url
        assert ask_redis(url, "CONFIG GET appendfsync", "DBSIZE") == [["appendfsync", "always"], 0]
