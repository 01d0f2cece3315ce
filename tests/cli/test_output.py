from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from rich.cells import cell_len
from typer import BadParameter

from pgqueue import cli_options, cli_output


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0805, "80.5ms"), (0, "0ms"), (1, "1s"), (59.94, "59.9s"), (61, "1m1s"), (3600, "1h"), (5025, "1h23m"),
        (90000, "1d1h"), (-125, "-2m5s"), (Decimal("3.5"), "3.5s"), (None, ""), (86399.7, "1d"),
    ],
)  # fmt: skip
def test_durations_are_told_in_two_units(seconds: float | None, told: str) -> None:
    assert cli_output.duration(seconds) == told


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_spans_are_read(text: str, seconds: float) -> None:
    assert cli_options.span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "10", "m", "1y", "-3m", "10m!", "ten minutes"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        cli_options.span(text)


def test_a_time_may_be_a_span_ago_or_a_moment_with_a_zone() -> None:
    assert datetime.now(UTC) - cli_options.ago("2h") == pytest.approx(timedelta(hours=2), abs=timedelta(seconds=5))
    assert cli_options.ago("2026-11-05T03:00:00+02:00") == datetime(2026, 11, 5, 1, tzinfo=UTC)
    with pytest.raises(BadParameter, match="time zone"):
        cli_options.ago("2026-11-05T03:00:00")


def test_a_table_fits_the_terminal_by_cutting_its_last_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": 1234567890, "error": "x" * 500}, {"id": 2, "error": "日本" * 50}]
    columns: cli_output.Columns = {"ID": "id", "ERROR": "error"}
    cli_output.table(rows, columns)
    assert "x" * 500 in capsys.readouterr().out, "what goes to a pipe is whole"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((60, 20)))
    cli_output.table(rows, columns)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert len(lines) == 3
    assert all(cell_len(line) <= 60 for line in lines)
    assert "1234567890" in lines[1]
    assert lines[1].endswith("…")


def test_an_error_message_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b]0;owned\x07\x1b[2J[red]b[/red]\r\nc\u202ed"
    cli_output.table([{"error": evil}], {"ERROR": "error"})
    cli_output.show_one({"error": evil}, as_json=False)
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\r\u202e")
    assert "[red]b[/red]" in shown


def test_json_keeps_big_numbers_and_says_times_by_iso(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": 2**62 + 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "n": Decimal("1.5"), "ttl": timedelta(minutes=1)}
    cli_output.show([row, row], {}, as_lines=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": 2**62 + 1, "at": "2026-01-01T00:00:00+00:00", "n": 1.5, "ttl": 60.0}
    ] * 2
    cli_output.show([], {}, as_json=True)
    assert capsys.readouterr().out == "[]\n"
