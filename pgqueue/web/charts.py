"""Charts as SVG without a library and without any style of their own: what a content security policy lets pass.

A chart is drawn in a square of 100 by 100 that the page stretches; so all words stand beside it, in HTML, and stay as
big as any other. A description of each step is its <title>, which browsers show on hover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from pgqueue.web import shown

Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    name: str
    css: str  # the class that colours it
    values: Values


@dataclass(frozen=True)
class Chart:
    """What a template needs to draw one."""

    title: str
    note: str
    svg: Markup
    legend: list[tuple[str, str, str]]  # class, name, latest value
    scale: list[str]  # of the y axis, from above
    times: list[datetime]
    empty: bool


def bars(title: str, at: Sequence[datetime], series: Sequence[Series], note: str = "") -> Chart:
    """Stacked: how many in each step."""
    totals = [sum(each.values[n] or 0 for each in series) for n in range(len(at))]
    top = _round_up(max(totals, default=0))
    parts: list[Markup] = [_grid(4)]
    width = 100 / max(len(at), 1)
    for n in range(len(at)):
        y = 100.0
        for each in series:
            height = (each.values[n] or 0) / top * 100
            if height <= 0:
                continue
            # A single failure among thousands must be seen.
            height = max(height, 1.2)
            y = max(y - height, 0)
            parts.append(
                Markup('<rect class="{}" x="{:.3f}" y="{:.2f}" width="{:.3f}" height="{:.2f}"/>').format(
                    f"{each.css} now" if n == len(at) - 1 else each.css, n * width + width * 0.1, y, width * 0.8, height
                )
            )
    parts.append(_hover(at, series, shown.number))
    scale = [shown.number(top * k / 4) for k in (4, 3, 2, 1, 0)]
    legend = [(each.css, each.name, shown.number(sum(value or 0 for value in each.values))) for each in series]
    return Chart(title, note, _svg(title, parts), legend, scale, _times(at), not any(totals))


def lines(
    title: str, at: Sequence[datetime], series: Sequence[Series], note: str = "", *, log: bool = False,
    say: Callable[[float | None], str] = shown.number,
) -> Chart:  # fmt: skip
    """One above the other; `log` for times, which go from milliseconds to hours."""
    known = [value for each in series for value in each.values if value is not None]
    if log:
        low = math.floor(math.log10(max(min(known, default=0.01), 0.0005)))
        high = max(math.ceil(math.log10(max(max(known, default=1), 0.001))), low + 1)
        marks = [10.0**power for power in range(high, low - 1, -1)]

        def height(value: float) -> float:
            return 100 - (math.log10(max(value, 10.0**low)) - low) / (high - low) * 100
    else:
        top = _round_up(max(known, default=0))
        marks = [top * k / 4 for k in (4, 3, 2, 1, 0)]

        def height(value: float) -> float:
            return 100 - value / top * 100

    parts: list[Markup] = [_grid(len(marks) - 1)]
    width = 100 / max(len(at), 1)
    for each in series:
        for run in _runs(each.values):
            points = [((n + 0.5) * width, height(each.values[n] or 0)) for n in run]
            if len(points) == 1:  # a line of one point is not seen
                points = [(points[0][0] - width * 0.4, points[0][1]), (points[0][0] + width * 0.4, points[0][1])]
            drawn = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            parts.append(Markup('<polyline class="line {}" points="{}"/>').format(each.css, drawn))
    parts.append(_hover(at, series, say))
    legend = [
        (each.css, each.name, say(next((value for value in reversed(each.values) if value is not None), None)))
        for each in series
    ]
    return Chart(title, note, _svg(title, parts), legend, [say(mark) for mark in marks], _times(at), not known)


def spark(values: Values, css: str = "c-done") -> Markup:
    """A small line without words."""
    known = [value or 0 for value in values]
    top = max(known, default=0)
    if top <= 0 or len(known) < 2:
        return Markup("")
    points = " ".join(f"{n / (len(known) - 1) * 100:.1f},{29 - value / top * 27:.1f}" for n, value in enumerate(known))
    return Markup(
        '<svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">'
        '<polygon class="area {}" points="0,30 {} 100,30"/><polyline class="line {}" points="{}"/></svg>'
    ).format(css, points, css, points)


def stretch(begin: datetime, end: datetime, spans: Sequence[tuple[datetime, datetime, str, str]]) -> Markup:
    """A bar of time with coloured spans (from, to, class, words) on it: when a job waited and when it ran."""
    total = max((end - begin).total_seconds(), 0.001)
    parts = [Markup('<rect class="c-wait" x="0" y="0" width="100" height="100"/>')]
    for since, until, css, words in spans:
        x = max((since - begin).total_seconds() / total * 100, 0)
        width = max((until - since).total_seconds() / total * 100, 0.7)
        parts.append(
            Markup('<rect class="{}" x="{:.3f}" y="0" width="{:.3f}" height="100"><title>{}</title></rect>').format(
                css, min(x, 100 - width), width, words
            )
        )
    return Markup('<svg class="stretch" viewBox="0 0 100 100" preserveAspectRatio="none" role="img">{}</svg>').format(
        Markup("").join(parts)
    )


# --------------------------------------------------------------------------------------------- details


def _svg(title: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>').format(
        title, Markup("").join(parts)
    )


def _grid(steps: int) -> Markup:
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="100" y1="{0:.2f}" y2="{0:.2f}"/>').format(k / steps * 100)
        for k in range(steps + 1)
    )


def _hover(at: Sequence[datetime], series: Sequence[Series], say: Callable[[float | None], str]) -> Markup:
    width = 100 / max(len(at), 1)
    parts = []
    for n, moment in enumerate(at):
        words = ", ".join(f"{each.name} {say(each.values[n])}" for each in series)
        parts.append(
            Markup('<rect class="hover" data-at="{}" x="{:.3f}" width="{:.3f}" height="100"><title>{}</title></rect>')
            .format(moment.isoformat(), n * width, width, f"{moment.astimezone(UTC):%a %H:%M} UTC: {words}")
        )  # fmt: skip
    return Markup("").join(parts)


def _times(at: Sequence[datetime]) -> list[datetime]:
    """Five of them for the x axis, the end included."""
    if len(at) < 2:
        return list(at)
    step: timedelta = at[1] - at[0]
    whole = at[-1] + step - at[0]
    return [at[0] + whole * k / 4 for k in range(5)]


def _runs(values: Values) -> list[list[int]]:
    """The stretches without a gap."""
    found: list[list[int]] = [[]]
    for n, value in enumerate(values):
        if value is not None:
            found[-1].append(n)
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


def _round_up(value: float) -> float:
    """To a figure whose quarters can be read."""
    if value <= 4:
        return 4
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if value <= step * power)
