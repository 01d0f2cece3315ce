"""Charts as SVG, without a library: bars that lie, and lines over time. Readable in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH = 720
COLOURS = ("#2f6fde", "#e07b39", "#2a9d6f", "#b8559f", "#8a8f98")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0 } .bar { fill: #a8b3c0 } .ours { fill: #2f6fde } .band { fill: #59636e; opacity: .12 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .bar { fill: #59636e } .ours { fill: #4d8dff }
.band { fill: #9198a1 } }
"""


def number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="{escape(title)}"><style>{STYLE}</style>'
        f'<text class="title" x="0" y="16">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )


def bars(title: str, unit: str, values: Mapping[str, float], ours: str = "pgqueue") -> str:
    """One bar each, in the order given."""
    left, right, step = 130, 90, 26
    most = max(values.values(), default=0) or 1
    parts = [f'<text class="small" x="0" y="34">{escape(unit)}</text>']
    for row, (name, value) in enumerate(values.items()):
        y = 46 + row * step
        length = max((WIDTH - left - right) * value / most, 1)
        kind = "ours" if name.startswith(ours) else "bar"
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{length:.1f}" height="18" rx="2"/>')
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 13}">{number(value)}</text>')
    return _svg(52 + len(values) * step, title, parts)


def lines(
    title: str,
    unit: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    bands: Sequence[tuple[float, float]] = (),
) -> str:
    """Over seconds, from zero; bands are shaded spans of time."""
    left, right, top, bottom, height = 60, 150, 46, 30, 320
    points = [point for each in series.values() for point in each] or [(0.0, 0.0)]
    last = max(x for x, _ in points) or 1
    step = _step(max(y for _, y in points) or 1)
    most = step * math.ceil((max(y for _, y in points) or 1) / step)

    def place(x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - left - right, height - top - bottom
        return left + wide * x / last, height - bottom - tall * y / most

    parts = [f'<text class="small" x="0" y="34">{escape(unit)}</text>']
    for start, end in bands:
        (a, high), (b, low) = place(start, most), place(min(end, last), 0)
        parts.append(f'<rect class="band" x="{a:.1f}" y="{high:.1f}" width="{b - a:.1f}" height="{low - high:.1f}"/>')
    for line in range(round(most / step) + 1):
        x, y = place(0, line * step)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="small" x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{number(line * step)}</text>'
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(last * share, 0)
        parts.append(
            f'<text class="small" x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{last * share:.0f} s</text>'
        )
    for row, (name, each) in enumerate(series.items()):
        colour = COLOURS[row % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in each))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + 6 + row * 20
        parts.append(f'<rect x="{WIDTH - right + 12}" y="{y - 9}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - right + 30}" y="{y}">{escape(name)}</text>')
    return _svg(height, title, parts)


def _step(most: float) -> float:
    """A round number of which four to eight make the height."""
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * part for part in (0.2, 0.25, 0.5, 1, 2) if most / (size * part) <= 6)
