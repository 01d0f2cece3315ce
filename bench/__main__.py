"""pgqueue beside its peers: the same work through each, in one run, by turns.

    python -m bench all                   everything; what `make bench` does
    python -m bench quick                 pgqueue, pgqueuer and graphile-worker, the main figures, under three minutes
    python -m bench drain latency …       only these, of: {measures}
    python -m bench report [FOLDER]       put a run's table and charts into docs/benchmarks.md and docs/images

The server is the one in DATABASE_URL (of this machine; databases named pgqueue_bench_… are made and dropped there),
else an embedded one with durable settings, which are printed. Redis is that in REDIS_URL (an empty database of it),
else a redis-server of our own, else its peers are left out. Peers are installed by name into --peers-dir. Every
contestant gets an empty queue for every measure and round, by turns, and the size that suited it best in a trial.
Medians and ratios: single figures move by 15 to 35 % on a busy machine. A run that is stopped keeps what it has, and
with --into another adds to it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench import measures, report
from bench.contest import BY_NAME, BenchError, Installed, Servers, install, redis_server
from bench.measures import MEASURES, Bench, Options
from bench.report import Results
from pgqueue import embedded

RESULTS = Path(__file__).parent / "results"
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": "100"}
QUICK = ("drain", "drain2", "single", "latency")
QUICK_FIELD = ("pgqueue", "pgqueuer", "graphile-worker")
ONCE = ("handlers", "idle", "memory", "payload", "scheduled", "snapshot", "backlog", "queues", "mixed")


def run(names: list[str], field: list[Installed], bench: Bench, results: Results, rounds: int, folder: Path) -> None:
    """All rounds of all measures; those that are long and about one contestant's own change are taken once."""
    for made in field:
        if made.who.name in bench.rates:
            continue  # of the run that this one adds to
        _try(results, f"trial of {made.who.name}", lambda made=made: measures.trial(bench, made))
        if made.who.name in bench.rates:
            size, rate = bench.sizes[made.who.name], bench.rates[made.who.name]
            tell(f"{made.who.name} {made.version}: size {size}, {rate:,.0f} jobs/s")
    ready = [made for made in field if made.who.name in bench.rates]
    for number in range(rounds):
        for name in names:
            if number and name in ONCE:
                continue
            started = time.monotonic()
            for made in ready if number % 2 == 0 else ready[::-1]:
                if MEASURES[name].who(made):
                    what = f"{name} of {made.who.name}"
                    _try(results, what, lambda made=made, name=name: _take(name, made, bench, results))
            results.about |= {"sizes": bench.sizes, "rates": bench.rates}
            results.series = bench.series
            results.save(folder)
            tell(f"round {number + 1} of {rounds}: {name} took {time.monotonic() - started:.0f} s")


def _take(name: str, made: Installed, bench: Bench, results: Results) -> None:
    results.add(made.who.name, MEASURES[name].take(bench, made))


def _try(results: Results, what: str, do: Any) -> None:
    try:
        do()
    except (BenchError, psycopg.Error, OSError, ArithmeticError) as error:
        results.failures.append(f"{what}: {error}".strip().replace("\n", " ")[:300])
        tell(f"not measured: {results.failures[-1]}")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_of(parser: argparse.ArgumentParser) -> None:
    for option in dataclasses.fields(Options):
        flag, default = f"--{option.name.replace('_', '-')}", option.default
        if isinstance(default, tuple):
            parser.add_argument(flag, type=int, nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"{default:,} unless given")


def main(arguments: list[str] | None = None) -> None:
    doc = (__doc__ or "").replace("{measures}", ", ".join(MEASURES))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="all, quick, report, or measures")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    parser.add_argument("--peers-dir", type=Path, default=cache / "pgqueue-bench", help="where peers are installed")
    parser.add_argument("--peers", nargs="*", help=f"whom to measure beside pgqueue, of {', '.join(list(BY_NAME)[1:])}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, help="the folder for the results; one that has some is added to")
    parser.add_argument("--redis-durable", action="store_true", help="our own Redis with appendfsync always")
    options_of(parser)
    args = parser.parse_args(arguments)
    if args.what[0] == "report":
        folders = sorted(path.parent for path in RESULTS.glob("*/results.json"))
        folder = Path(args.what[1]) if len(args.what) > 1 else folders[-1] if folders else RESULTS
        report.document(Results.load(folder))
        return
    quick = args.what == ["quick"]
    names = list(QUICK) if quick else list(MEASURES) if args.what == ["all"] else args.what
    if unknown := set(names) - set(MEASURES):
        parser.error(f"{', '.join(unknown)}: there is {', '.join(MEASURES)}")
    wanted = ["pgqueue", *args.peers] if args.peers is not None else list(QUICK_FIELD if quick else BY_NAME)
    given: dict[str, Any] = {option.name: getattr(args, option.name) for option in dataclasses.fields(Options)}
    if quick:
        args.rounds, given["seconds"], given["singles"], given["latency_jobs"] = 1, 1.5, 1000, 100
        given["trials"] = 3
    chosen: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}
    options = Options(**chosen)
    with ExitStack() as stack:
        server = os.environ.get("DATABASE_URL") or stack.enter_context(embedded.temporary(SETTINGS)).url()
        try:
            redis = (
                stack.enter_context(redis_server(args.redis_durable))
                if any(BY_NAME[n].on_redis for n in wanted if n in BY_NAME)
                else None
            )
        except BenchError as error:
            sys.exit(str(error))
        field = install(wanted, args.peers_dir, redis is not None, tell)
        watcher = stack.enter_context(psycopg.connect(server, autocommit=True))
        info = watcher.info  # named in full: what libpq would guess, others guess differently
        server = make_conninfo(server, host=info.host, port=info.port, user=info.user)
        bench = Bench(Servers(server, redis), options, watcher)
        now = datetime.datetime.now(datetime.UTC)
        folder = args.into or RESULTS / f"{now:%Y-%m-%d-%H%M%S}"
        results = Results.load(folder) if (folder / "results.json").exists() else Results()
        bench.series = results.series
        bench.sizes, bench.rates = results.about.get("sizes", {}), results.about.get("rates", {})
        results.about |= {
            "date": f"{now:%Y-%m-%d}",
            "machine": measures.machine(),
            "postgres": measures.versions(watcher),
            "redis": measures.redis_settings(redis) if redis else None,
            "versions": {made.who.name: made.version for made in field},
            "rounds": args.rounds,
            "options": dataclasses.asdict(options),
        }
        for name in ("postgres", "redis"):
            tell(f"{name}: {', '.join(f'{k} {v}' for k, v in (results.about[name] or {}).items())}")
        started = time.monotonic()
        try:
            run(names, field, bench, results, args.rounds, folder)
        except KeyboardInterrupt:
            tell("stopped; what was measured is kept")
        results.about["minutes"] = round((time.monotonic() - started) / 60, 1)
        report.write(results, folder)
        report.show(results)
        tell(
            f"\nin {folder}: results.json, table.md and charts; `python -m bench report {folder}` puts them into docs/"
        )


if __name__ == "__main__":
    main()
