"""From figures to what people read: tables in the terminal and in Markdown, goals, charts, docs/benchmarks.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import chart
from bench.contest import BY_NAME

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- figures: made by `python -m bench report` -->", "<!-- end of the figures -->"
OURS = "pgqueue"
POSTGRES = tuple(name for name, who in BY_NAME.items() if not who.on_redis and name != OURS)


@dataclass
class Results:
    """All of a run; what it is stored as."""

    about: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # name → contestant → one a round
    series: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, who: str, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self.figures.setdefault(name, {}).setdefault(who, []).append(value)

    def median(self, name: str, who: str) -> float | None:
        values = self.figures.get(name, {}).get(who)
        return statistics.median(values) if values else None

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(vars(self), indent=1))

    @staticmethod
    def load(folder: Path) -> Results:
        return Results(**json.loads((folder / "results.json").read_text()))


@dataclass(frozen=True)
class Column:
    name: str  # of the figure
    title: str
    more_is_better: bool | None = True  # None: not a matter of better


@dataclass(frozen=True)
class Section:
    title: str
    note: str
    columns: tuple[Column, ...]


def _less(name: str, title: str) -> Column:
    return Column(name, title, more_is_better=False)


def sections(results: Results) -> Iterator[Section]:
    options = results.about.get("options", {})
    yield Section(
        "Throughput, jobs a second",
        "No-op jobs of some 130 bytes; each contestant with the size (concurrency, batch) that suited it best.",
        (
            Column("drain", "drain, one worker"),
            Column("drain2", "drain, two workers"),
            Column("single", "single enqueue"),
            Column("bulk", "bulk enqueue"),
        ),
    )
    yield Section(
        "From enqueue to the start of the handler, ms",
        "One job at a time, from just before the call; idle, and beside a load of half of what the contestant can do.",
        (
            *(_less(f"idle p{p}", f"idle p{p}") for p in (50, 95, 99)),
            Column("half_load", "half load, jobs/s", None),
            *(_less(f"half p{p}", f"half load p{p}") for p in (50, 95, 99)),
        ),
    )
    yield Section(
        "Handlers that take time, jobs a second",
        "One worker process, so many jobs at once. `1 ms x 10` could at best be 10,000.",
        tuple(
            Column(f"handler {ms} ms x {n}", f"{ms} ms x {n}")
            for ms in options.get("handlers", ())
            for n in options.get("at_once", ())
        ),
    )
    yield Section(
        "What a job costs",
        "WAL; room on disk, indexes and all; processor time of PostgreSQL for the drain.",
        (
            _less("wal", "WAL, whole life, bytes"),
            _less("wal_enqueue", "of that enqueue"),
            _less("disk", "kept on disk, bytes"),
            _less("cpu", "PostgreSQL for the drain, µs"),
        ),
    )
    yield Section(
        "What a worker costs",
        "Queries a second and processor time without jobs; resident memory of the biggest process after a load, and of"
        " all processes of the worker, shared pages counted once.",
        (
            _less("idle", "idle queries/s"),
            _less("idle_cpu", "idle CPU, %"),
            _less("memory", "memory, MB"),
            _less("memory_all", "all its processes, MB"),
        ),
    )
    yield Section(
        f"Payloads of {options.get('payload_bytes', 8000):,} bytes",
        "",
        (
            Column("payload_bulk", "bulk enqueue, jobs/s"),
            Column("payload_drain", "drain, jobs/s"),
            _less("payload_wal", "WAL, whole life, bytes"),
        ),
    )
    yield Section(
        "A snapshot held open by somebody else, jobs a second",
        f"A backlog of 10,000 jobs all the time; before, while {options.get('snapshot_jobs', 0):,} jobs pass (or"
        f" {options.get('snapshot_seconds', 0):.0f} s), by quarters, and after.",
        (
            Column("snapshot before", "before", None),
            *(Column(f"snapshot held {q}/4", f"held, {q}/4", None) for q in (1, 2, 3, 4)),
            Column("snapshot after", "after", None),
            Column("snapshot jobs", "jobs that passed", None),
            Column("snapshot_ratio", "last quarter / before"),
        ),
    )
    yield Section(
        "A backlog, jobs a second",
        "One worker beside a producer that keeps so many jobs waiting.",
        tuple(Column(f"backlog {n}", f"{n:,}", None) for n in options.get("backlogs", ()))
        + tuple(Column(f"backlog_ratio {n}", f"{n:,} / first") for n in list(options.get("backlogs", ()))[1:]),
    )
    yield Section(
        f"Beside {options.get('scheduled', 0):,} jobs that are not due; in {options.get('queues', 0):,} queues",
        "",
        (
            Column("scheduled", "drain beside them, jobs/s"),
            Column("scheduled_ratio", "/ without"),
            Column("queues", "drain of the queues, jobs/s"),
            Column("queues_ratio", "/ one queue"),
        ),
    )
    yield Section(
        f"A mixed load for {options.get('mixed_seconds', 0):.0f} s",
        f"At {100 * options.get('mixed_share', 0):.0f} % of what it did flat out; autovacuum as shipped; the first and"
        " the last tenth of the time.",
        (
            Column("mixed_load", "load, jobs/s", None),
            *(Column(f"mixed {when} jobs/s", f"{when}, jobs/s", None) for when in ("first", "last")),
            *(Column(f"mixed {when} p99 ms", f"{when}, p99 ms", None) for when in ("first", "last")),
            *(Column(f"mixed {when} live MB", f"{when}, live tables MB", None) for when in ("first", "last")),
        ),
    )


def rows(results: Results, section: Section) -> tuple[list[str], list[list[str]]]:
    """Head and body; a contestant a row, those that have nothing left out."""
    columns = [column for column in section.columns if column.name in results.figures]
    names = [name for name in BY_NAME if any(name in results.figures[column.name] for column in columns)]
    return ["", *(column.title for column in columns)], [
        [name, *(_cell(results, column, name) for column in columns)] for name in names
    ]


def _cell(results: Results, column: Column, name: str) -> str:
    values = results.figures[column.name].get(name)
    if not values:
        return "–"
    middle = statistics.median(values)
    text = chart.number(middle)
    if len(values) > 1 and middle:
        text += f" ±{100 * (max(values) - min(values)) / 2 / abs(middle):.0f} %"
    ratio = _ratio(results, column, name)
    return f"{text} ({ratio:.2f}×)" if ratio else text


def _ratio(results: Results, column: Column, name: str) -> float | None:
    """Above 1: ours is better."""
    ours, theirs = results.median(column.name, OURS), results.median(column.name, name)
    if name == OURS or column.more_is_better is None or not ours or not theirs:
        return None
    return ours / theirs if column.more_is_better else theirs / ours


def goals(results: Results) -> list[list[str]]:
    """Work, goal, found, reached."""
    found = []

    def goal(work: str, wanted: str, value: float | None, limit: float, text: str, at_most: bool = False) -> None:
        if value is not None:
            found.append([work, wanted, text, "yes" if (value <= limit if at_most else value >= limit) else "**no**"])

    def faster(work: str, name: str, factor: float, peers: Sequence[str]) -> None:
        measured = [(peer, results.median(name, peer)) for peer in peers]
        present = [(rate, peer) for peer, rate in measured if rate]
        ours = results.median(name, OURS)
        if present and ours:
            rate, best = max(present)
            goal(work, f"≥ {factor:g} × {peers[0] if len(peers) == 1 else 'the best: ' + best}",
                 ours / rate, factor, f"{ours / rate:.2f} ×")  # fmt: skip

    everyone = [name for name in BY_NAME if name != OURS]
    for peer, factor in (("graphile-worker", 1.2), ("pgqueuer", 3), ("procrastinate", 60), ("celery", 40)):
        faster("drain, one worker", "drain", factor, [peer])
    faster("drain, two workers", "drain2", 1.2, everyone)
    faster("single enqueue", "single", 1.2, POSTGRES)
    faster("bulk enqueue", "bulk", 1.2, everyone)
    for name in ("idle p50", "idle p99"):
        ours = results.median(name, OURS)
        best = min(filter(None, (results.median(name, peer) for peer in POSTGRES)), default=None)
        if ours and best:
            goal(
                f"enqueue to start, {name}",
                "≤ the best on PostgreSQL",
                ours,
                best,
                f"{ours:.2f} against {best:.2f} ms",
                True,
            )
    last = max(results.about.get("options", {}).get("backlogs", [0]))
    for work, name, limit in (
        ("snapshot held", "snapshot_ratio", 0.9),
        (f"backlog of {last:,}", f"backlog_ratio {last}", 0.9),
        ("mixed load: last tenth / first", "mixed_ratio", 0.9),
    ):
        value = results.median(name, OURS)
        goal(work, f"≥ {limit} × our own rate before", value, limit, f"{value:.2f}" if value else "")
    for work, name, limit, unit in (("WAL of a job", "wal", 1500, "bytes"), ("worker memory", "memory", 60, "MB")):
        value = results.median(name, OURS)
        goal(work, f"≤ {limit:,} {unit}", value, limit, f"{value:,.0f} {unit}" if value else "", at_most=True)
    return found


# ------------------------------------------------------------------------------------------------- as text


def plain(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(line)).rstrip()
        for line in [head, *body]
    )


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(results: Results) -> None:
    for section in sections(results):
        head, body = rows(results, section)
        if body:
            print(f"\n{section.title}\n{plain(head, body)}")
    if reached := goals(results):
        print(f"\nGoals\n{plain(['work', 'goal', 'found', 'reached'], reached)}")
    for failure in results.failures:
        print(f"not measured: {failure}")


def markdown(results: Results, images: Mapping[str, str], folder: str = "") -> str:
    about = results.about
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    settings = ", ".join(
        f"{name} {value}" for name, value in about.get("postgres", {}).items() if name != "server_version"
    )
    machine = about.get("machine", {})
    parts = [
        f"Measured on {about.get('date')}: {machine.get('cores')} cores ({machine.get('processor')}),"
        f" {machine.get('memory')}, {machine.get('system')}; {about.get('rounds')} rounds, medians, half of the spread"
        " after ±; in brackets pgqueue beside it, above 1 is in pgqueue's favour.",
        f"PostgreSQL {about.get('postgres', {}).get('server_version')}: {settings}.",
    ]
    if redis := about.get("redis"):
        settings = ", ".join(f"{name} {value or 'none'}" for name, value in redis.items() if name != "version")
        parts.append(f"Redis {redis['version']}: {settings}.")
        if (redis["appendonly"], redis["appendfsync"]) != ("yes", "always"):
            parts[-1] += (
                " What it acknowledges is in memory, not on disk: a crash loses it. On PostgreSQL all is on disk."
            )
    parts.append(f"Versions: {versions}.")
    sizes = ", ".join(f"{name} {size}" for name, size in about.get("sizes", {}).items())
    parts.append(f"Sizes that suited best: {sizes}.")
    if reached := goals(results):
        parts += ["### Goals", _markdown(["work", "goal", "found", "reached"], reached)]
    for section in sections(results):
        head, body = rows(results, section)
        if body:
            parts += [f"### {section.title}", section.note, _markdown(head, body)]
            parts += [
                f"![{title}]({folder}{name})" for name, title in images.items() if title.startswith(section.title)
            ]
    if results.failures:
        parts += ["### Not measured", "\n".join(f"- {failure}" for failure in results.failures)]
    return "\n\n".join(part for part in parts if part)


# -------------------------------------------------------------------------------------------------- charts


def charts(results: Results) -> dict[str, tuple[str, str]]:
    """By file name: what section it belongs to, and the picture."""
    made: dict[str, tuple[str, str]] = {}

    def bar(file: str, name: str, title: str, unit: str, section: str, descending: bool = True) -> None:
        values = {who: m for who in BY_NAME if (m := results.median(name, who)) is not None}
        if values:
            ordered = dict(sorted(values.items(), key=lambda item: item[1], reverse=descending))
            made[file] = (section, chart.bars(title, unit, ordered))

    throughput, waits = "Throughput, jobs a second", "From enqueue to the start of the handler, ms"
    bar("bench-drain.svg", "drain", "Drain, one worker process", "jobs a second", throughput)
    bar("bench-drain2.svg", "drain2", "Drain, two worker processes", "jobs a second", throughput)
    bar("bench-single.svg", "single", "Single enqueue", "jobs a second", throughput)
    bar("bench-bulk.svg", "bulk", "Bulk enqueue", "jobs a second", throughput)
    bar("bench-latency.svg", "idle p50", "Enqueue to start, idle, median", "ms, less is better", waits, False)
    bar("bench-latency-p99.svg", "idle p99", "Enqueue to start, idle, p99", "ms, less is better", waits, False)
    held, bands = {}, []
    for name, series in results.series.items():
        if name.startswith("snapshot "):
            who = name.removeprefix("snapshot ")
            before = results.median("snapshot before", who) or 1
            share = [100 * rate / before for rate in series["jobs/s"]]
            held[who] = list(zip(series["seconds"], share, strict=True))
            if who == OURS:
                bands.append((series["events"][0], series["events"][1]))
    if held:
        title = "A snapshot held open: what is left of the rate before"
        picture = chart.lines(title, "% of its own rate before; shaded: held, for pgqueue", held, bands)
        made["bench-snapshot.svg"] = ("A snapshot held open by somebody else, jobs a second", picture)
    mixed = results.series.get(f"mixed {OURS}")
    if mixed:
        section = f"A mixed load for {results.about.get('options', {}).get('mixed_seconds', 0):.0f} s"
        for file, name, title in (
            ("bench-mixed-rate.svg", "jobs/s", "Mixed load: jobs a second"),
            ("bench-mixed-latency.svg", "p99 ms", "Mixed load: enqueue to start, p99, ms"),
            ("bench-mixed-size.svg", "live MB", "Mixed load: size of the live tables, MB"),
        ):
            points = list(zip(mixed["seconds"], mixed[name], strict=True))
            made[file] = (section, chart.lines(title, "over time", {OURS: points}))
    return made


def write(results: Results, folder: Path) -> None:
    """All of a run: results.json, the charts, and the table as Markdown."""
    results.save(folder)
    pictures = charts(results)
    for name, (_, picture) in pictures.items():
        (folder / name).write_text(picture)
    (folder / "table.md").write_text(
        markdown(results, {name: section for name, (section, _) in pictures.items()}) + "\n"
    )


def document(results: Results, path: Path = DOCUMENT, images: Path = IMAGES) -> None:
    """Put the figures between the markers of docs/benchmarks.md, and the charts into docs/images."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path} has not the two markers between which the figures go")
    for old in images.glob("bench-*.svg"):
        old.unlink()
    pictures = charts(results)
    for name, (_, picture) in pictures.items():
        (images / name).write_text(picture)
    shown = markdown(results, {name: section for name, (section, _) in pictures.items()}, "images/")
    path.write_text(f"{before}{BEGIN}\n\n{shown}\n\n{END}{after}")
