"""What commands print: tables that fit the terminal, JSON, one JSON object a line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]
Column = str | Callable[[Row], Any]  # a key of the row, or what to make of the row
Columns = Mapping[str, Column]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_GAP = 2
# name and seconds, then those of the unit below it
_UNITS: list[tuple[str, int, str, int]] = [
    ("d", 86400, "h", 3600),
    ("h", 3600, "m", 60),
    ("m", 60, "s", 1),
    ("s", 1, "", 1),
]


def show(rows: Sequence[Row], columns: Columns, as_json: bool = False, as_lines: bool = False) -> None:
    """Rows as a table; with --json all that is known of them as one array, with --jsonl an object a line."""
    if as_lines:
        for row in rows:
            typer.echo(to_json(row))
    elif as_json:
        typer.echo(to_json(list(rows)))
    else:
        table(rows, columns)


def show_one(row: Row, as_json: bool, as_lines: bool = False) -> None:
    """One thing: a line for each of its facts."""
    if as_json or as_lines:
        typer.echo(to_json(row))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        if value is not None and value != []:
            typer.echo(f"{name:{width}}  {said(value, one_line=False)}")


def table(rows: Sequence[Row], columns: Columns) -> None:
    """The last column gives way when the terminal is too narrow; what goes to a file or a pipe is never cut."""
    if not rows:
        return
    cells = [[said(_value(row, column)) for column in columns.values()] for row in rows]
    names = list(columns)
    right = [
        all(isinstance(_value(row, c), (int, float, Decimal, type(None))) for row in rows) for c in columns.values()
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if width:
        others = sum(max(cell_len(line[i]) for line in [names, *cells]) + _GAP for i in range(len(names) - 1))
        room = max(width - others, len(names[-1]), 10)
        for line in cells:
            line[-1] = _fitted(line[-1], room)
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name, number in zip(names, right, strict=True):
        made.add_column(name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for line in cells:
        made.add_row(*map(Text, line))
    console = Console(width=width or 100_000, highlight=False)
    with console.capture() as captured:
        console.print(made)
    for line_of_text in captured.get().splitlines():
        typer.echo(line_of_text.rstrip())


def _value(row: Row, column: Column) -> Any:
    return row[column] if isinstance(column, str) else column(row)


def _fitted(text: str, room: int) -> str:
    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1).rstrip()}…"


def said(value: Any, one_line: bool = True) -> str:
    """A value for people. What came from a payload or an error must not command the terminal: no control characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (float, Decimal)):
        return f"{value:,.3g}" if abs(float(value)) < 100 else f"{value:,.0f}"
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, (list, tuple)) and all(isinstance(each, (str, int)) for each in value):
        value = ", ".join(map(str, value))
    elif not isinstance(value, (str, int)):
        value = to_json(value)
    if one_line:
        return _CONTROL.sub(" ", str(value)).strip()
    return "\n".join(_CONTROL.sub(" ", line) for line in str(value).splitlines())


def duration(seconds: float | Decimal | None) -> str:
    """2d4h, 3h12m, 4m5s, 12s, 80ms: two units are enough."""
    if seconds is None:
        return ""
    seconds = float(seconds)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.3g}ms"
    if seconds < 60:
        return f"{sign}{seconds:.3g}s"
    whole = round(seconds)
    unit, size, lower, below = next(unit for unit in _UNITS if whole >= unit[1])
    rest = whole % size // below
    return f"{sign}{whole // size}{unit}{f'{rest}{lower}' if rest else ''}"


def age(moment: datetime | None) -> str:
    """How long ago; ahead of now: with a plus."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"+{duration(-seconds)}" if seconds < 0 else duration(seconds)


def to_json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    return str(value)


def tell(text: str) -> None:
    """To people, beside what a program may be reading."""
    typer.echo(text, err=True)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shell_word(text: str) -> str:
    return shlex.quote(said(text))


def first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None
