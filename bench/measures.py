"""What is measured, each as a function of one contestant: one round, figures by name.

A rate of a drain goes from the moment when every worker process has begun a job until the database holds no unfinished
job. `Load` keeps a backlog or a rate while somebody works, for everything that is about time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from bench import proc
from bench.contest import (
    PATIENCE_SECONDS,
    Arena,
    BenchError,
    Crew,
    Feeder,
    Installed,
    Servers,
    arena,
    ask_redis,
    backends_cpu_seconds,
    value,
    wait_until,
)

WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
NORMAL_PAD = 100  # what makes a payload of some 130 bytes
Round = dict[str, float]
Series = dict[str, list[float]]


@dataclass
class Options:
    """How big the measures are; each is an option of the command line."""

    trials: int = 5  # of sizes, before anything is measured
    seconds: float = 4.0  # that a drain should last
    most_jobs: int = 400_000
    singles: int = 2000
    latency_jobs: int = 300
    idle_seconds: float = 20.0
    memory_jobs: int = 100_000
    backlogs: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    backlog_seconds: float = 10.0
    snapshot_jobs: int = 400_000
    snapshot_seconds: float = 90.0
    scheduled: int = 100_000
    queues: int = 1000
    payload_bytes: int = 8000
    handlers: tuple[int, ...] = (1, 20)
    at_once: tuple[int, ...] = (10, 100)
    mixed_seconds: float = 600.0
    mixed_share: float = 0.8
    settle_seconds: float = 3.0  # after a worker was started


@dataclass
class Bench:
    """The servers, the options, and what was found out about each contestant on the way."""

    servers: Servers
    options: Options
    watcher: psycopg.Connection[Any]
    sizes: dict[str, str] = field(default_factory=dict)  # what suited it best
    rates: dict[str, float] = field(default_factory=dict)  # jobs a second, one worker
    capacities: dict[str, float] = field(default_factory=dict)  # and with a producer beside it
    series: dict[str, Series] = field(default_factory=dict)

    def arena(self, made: Installed, **extra: object) -> Any:
        return arena(self.servers, made, **extra)

    def every(self, made: Installed) -> int:
        """How many jobs stand for one line of a worker: hundreds of lines a second."""
        return max(min(int(self.rates[made.who.name] / 200), 100), 1)

    def jobs(self, made: Installed, at_most: int | None = None) -> int:
        wanted = int(self.rates[made.who.name] * self.options.seconds)
        return max(min(wanted, at_most or self.options.most_jobs), 500)


# --------------------------------------------------------------------------------------------------- drains


def drain(place: Arena, size: str, jobs: int, processes: int = 1, mode: str = "drain") -> float:
    """Jobs a second; the jobs are there."""
    every = max(jobs // 200, 1)
    with place.asking() as all_finished, place.working(size, mode, processes=processes, every=every) as crew:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while crew.look() < jobs - every * max(len(crew.counts), 1):
            if time.monotonic() > deadline:
                raise BenchError(f"{place.who.name} began {crew.look():,} of {jobs:,} jobs")
            time.sleep(0.005)
        wait_until(all_finished, PATIENCE_SECONDS, f"{place.who.name} does not finish its jobs", 0.002)
        ended = time.monotonic()
        crew.look()
        started = max(marks[0][0] for marks in crew.counts.values())
        last = max(marks[-1][0] for marks in crew.counts.values())
        place.begun_rate = (crew.look() - crew.begun_at(started)) / max(last - started, 1e-3)
        return (jobs - crew.begun_at(started)) / (ended - started)


def trial(bench: Bench, made: Installed) -> None:
    """Which size suits it best, and how fast it is about."""
    rates: dict[str, float] = {}
    begun: dict[str, float] = {}
    jobs = 2000
    with bench.arena(made) as place:
        place.enqueue(jobs)
        guess = drain(place, made.who.sizes[0], jobs)
        guess = max(guess, place.begun_rate)  # a flush at the end must not make the next ones short
    if bench.options.trials < 2:
        bench.sizes[made.who.name], bench.rates[made.who.name] = made.who.sizes[0], guess
        return
    jobs = int(max(min(guess * min(bench.options.seconds, 1.5), bench.options.most_jobs), 500))
    for size in made.who.sizes[: bench.options.trials]:
        with bench.arena(made) as place:
            place.enqueue(jobs)
            place.settle()
            rates[size] = drain(place, size, jobs)
            begun[size] = max(rates[size], place.begun_rate)
    best = max(rates, key=lambda size: rates[size])
    bench.sizes[made.who.name], bench.rates[made.who.name] = best, begun[best]


def drained(bench: Bench, made: Installed) -> Round:
    """Bulk enqueue, drain by one worker, and what both cost. Payloads have some 130 bytes."""
    jobs, size = bench.jobs(made), bench.sizes[made.who.name]
    with bench.arena(made, BYTES=NORMAL_PAD) as place:
        wal = [_wal(bench)]
        figures = {"bulk": place.enqueue(jobs)}
        wal.append(_wal(bench))
        place.settle()
        wal.append(_wal(bench))
        cpu = _backends(bench, place)
        figures["drain"] = drain(place, size, jobs)
        if cpu is not None:
            figures["cpu"] = 1e6 * ((_backends(bench, place) or 0) - cpu) / jobs
        if not place.who.on_redis:
            figures["wal_enqueue"] = (wal[1] - wal[0]) / jobs
            figures["wal"] = (wal[1] - wal[0] + _wal(bench) - wal[2]) / jobs
        if place.who.kept:
            place.settle()
            with psycopg.connect(place.dsn) as conn:
                figures["disk"] = float(value(conn, place.who.kept)) / jobs
    return figures


def _wal(bench: Bench) -> float:
    return float(value(bench.watcher, WAL))


def _backends(bench: Bench, place: Arena) -> float | None:
    return None if place.who.on_redis else backends_cpu_seconds(bench.watcher, place.dsn)


def drained_by_two(bench: Bench, made: Installed) -> Round:
    jobs = bench.jobs(made)
    with bench.arena(made, BYTES=NORMAL_PAD) as place:
        place.enqueue(jobs)
        place.settle()
        return {"drain2": drain(place, bench.sizes[made.who.name], jobs, processes=2)}


def single(bench: Bench, made: Installed) -> Round:
    with bench.arena(made, BYTES=NORMAL_PAD) as place:
        place.run("single", 10)
        return {"single": bench.options.singles / float(place.run("single", bench.options.singles))}


def handlers(bench: Bench, made: Installed) -> Round:
    """Handlers that sleep, so many at once."""
    figures: Round = {}
    for milliseconds in bench.options.handlers:
        for at_once in bench.options.at_once:
            size = made.who.at(at_once)
            if size is None:
                continue
            possible = min(1000 * at_once / milliseconds, bench.rates[made.who.name])
            jobs = int(max(min(possible * bench.options.seconds, bench.options.most_jobs), 200))
            with bench.arena(made, MS=milliseconds) as place:
                place.enqueue(jobs)
                place.settle()
                figures[f"handler {milliseconds} ms x {at_once}"] = drain(place, size, jobs)
    return figures


def payloads(bench: Bench, made: Installed) -> Round:
    jobs = bench.jobs(made, at_most=20_000)
    with bench.arena(made, BYTES=bench.options.payload_bytes) as place:
        wal = _wal(bench)
        figures = {"payload_bulk": place.enqueue(jobs)}
        place.settle()
        figures["payload_drain"] = drain(place, bench.sizes[made.who.name], jobs)
        if not place.who.on_redis:
            figures["payload_wal"] = (_wal(bench) - wal) / jobs
    return figures


def scheduled(bench: Bench, made: Installed) -> Round:
    """The drain of jobs that are due, without and beside many that are not."""
    jobs, rates = bench.jobs(made), []
    for others in (0, bench.options.scheduled):
        with bench.arena(made) as place:
            if others:
                later = Arena(made, place.dsn, place.redis, {"DELAY": 36_000})
                later.run("enqueue", others)
            place.enqueue(jobs)
            place.settle()
            every = max(jobs // 200, 1)
            with place.working(bench.sizes[made.who.name], every=every) as crew:
                rates.append(_rate_until(crew, int(jobs * 0.95)))
    return {"scheduled": rates[1], "scheduled_ratio": rates[1] / rates[0]}


def _rate_until(crew: Crew, jobs: int) -> float:
    """From the first job to that one, where the end of all cannot be seen."""
    wait_until(lambda: crew.look() >= jobs, PATIENCE_SECONDS, f"{crew.name} began {crew.look():,} of {jobs:,} jobs")
    marks = sorted(mark for each in crew.counts.values() for mark in each)
    return (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])


def many_queues(bench: Bench, made: Installed) -> Round:
    jobs, rates = bench.jobs(made, at_most=200_000), []
    for queues in (1, bench.options.queues):
        with bench.arena(made, QUEUES=queues) as place:
            place.enqueue(jobs)
            place.settle()
            rates.append(drain(place, bench.sizes[made.who.name], jobs))
    return {"queues": rates[1], "queues_ratio": rates[1] / rates[0]}


# -------------------------------------------------------------------------------------------------- latency


def latency(bench: Bench, made: Installed) -> Round:
    """From just before the call of enqueue to the first line of the handler, one job at a time."""
    with bench.arena(made) as place, place.working(_waiting(made), "serve") as crew:
        time.sleep(bench.options.settle_seconds)
        return _percentiles("idle", _trickled(place, crew, bench.options.latency_jobs))


def _waiting(made: Installed) -> str:
    return made.who.at(20) or "1"


def _trickled(place: Arena, crew: Crew, jobs: int) -> list[float]:
    warm_up = 10
    lines = place.run("trickle", jobs + warm_up).splitlines()
    asked = {int(i): float(at) for i, at in map(str.split, lines)}
    missing = f"{crew.name} did not begin all of {jobs} single jobs"
    wait_until(lambda: crew.look() >= 0 and crew.told.keys() >= asked.keys(), 30, missing)
    return sorted(1000 * (crew.told[i] - at) for i, at in asked.items() if i >= warm_up)


def _percentiles(name: str, waits: list[float]) -> Round:
    return {f"{name} p{p}": waits[min(len(waits) * p // 100, len(waits) - 1)] for p in (50, 95, 99)}


def half_load(bench: Bench, made: Installed) -> Round:
    """The same beside a load of half of what it could do with a producer beside it."""
    rate = capacity(bench, made) / 2
    with (
        bench.arena(made, BYTES=NORMAL_PAD) as place,
        place.working(bench.sizes[made.who.name], every=bench.every(made)) as crew,
        Load(place, crew) as load,
    ):
        load.pace(rate, 2)
        with load.in_the_background(rate):
            waits = _trickled(place, crew, bench.options.latency_jobs)
    return {"half_load": rate, **_percentiles("half", waits)}


def capacity(bench: Bench, made: Installed) -> float:
    """Jobs a second that one worker does while a producer keeps a backlog of a second or so."""
    name = made.who.name
    if name not in bench.capacities:
        with (
            bench.arena(made, BYTES=NORMAL_PAD) as place,
            place.working(bench.sizes[name], every=bench.every(made)) as crew,
            Load(place, crew) as load,
        ):
            backlog = int(min(max(bench.rates[name] / 4, 1000), 10_000))
            load.keep(backlog, bench.options.seconds / 2)
            bench.capacities[name] = load.keep(backlog, bench.options.seconds)
    return bench.capacities[name]


# ------------------------------------------------------------------------------------------ load over time


class Load:
    """A producer beside a crew."""

    def __init__(self, place: Arena, crew: Crew, before: int = 0) -> None:
        self.crew, self.before = crew, before
        self._feeding = place.feeding()
        self.marks: list[tuple[float, int]] = []  # when, how many had begun

    def __enter__(self) -> Load:
        self.feeder: Feeder = self._feeding.__enter__()
        self.feeder.ask(10)
        nothing = f"the worker of {self.crew.name} begins nothing"
        wait_until(lambda: self.crew.look() > 0, PATIENCE_SECONDS, nothing)  # else its start would be in the rate
        return self

    def __exit__(self, *args: Any) -> None:
        self._feeding.__exit__(*args)

    def _mark(self) -> int:
        begun = self.crew.look()
        if not self.marks or begun > self.marks[-1][1]:
            self.marks.append((time.monotonic(), begun))
        return begun

    def keep(self, backlog: int, seconds: float, jobs: float = float("inf")) -> float:
        """Keep so many waiting for so long, or until so many jobs passed; jobs a second."""
        started, first = time.monotonic(), self._mark()
        portion = min(1000, max(backlog // 4, 1))
        while time.monotonic() < started + seconds and self._mark() - first < jobs:
            under_way = self.feeder.asked - self.feeder.look()
            if under_way < 2 * portion and self.before + self.feeder.asked - self.crew.look() < backlog:
                self.feeder.ask(portion)
            else:
                time.sleep(0.001)
        return (self._mark() - first) / (time.monotonic() - started)

    def pace(self, rate: float, seconds: float, each_step: Callable[[], bool] = lambda: True) -> float:
        """Enqueue so many a second; jobs a second that began."""
        started, first, asked = time.monotonic(), self._mark(), 0
        while (passed := time.monotonic() - started) < seconds and each_step():
            due = int(rate * passed) - asked
            if due >= max(rate / 50, 1) and self.feeder.asked - self.feeder.look() < rate:
                self.feeder.ask(due)
                asked += due
            self._mark()
            time.sleep(0.005)
        return (self._mark() - first) / (time.monotonic() - started)

    @contextmanager
    def in_the_background(self, rate: float) -> Iterator[None]:
        """A load while this process waits for something else; then nobody may look at the crew meanwhile."""
        import threading

        stop = threading.Event()
        feeder = self.feeder

        def feed() -> None:
            started, asked = time.monotonic(), 0
            while not stop.wait(0.01):
                due = int(rate * (time.monotonic() - started)) - asked
                if due >= max(rate / 50, 1) and feeder.asked - feeder.look() < rate:
                    feeder.ask(due)
                    asked += due

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def backlog(bench: Bench, made: Installed) -> Round:
    """The rate of one worker while so many jobs wait, always as many, beside the producer that keeps it so."""
    figures: Round = {}
    for waiting in bench.options.backlogs:
        with bench.arena(made, BYTES=NORMAL_PAD) as place:
            place.enqueue(waiting)
            place.settle()
            with (
                place.working(bench.sizes[made.who.name], every=bench.every(made)) as crew,
                Load(place, crew, waiting) as load,
            ):
                load.keep(waiting, bench.options.backlog_seconds / 2)
                figures[f"backlog {waiting}"] = load.keep(waiting, bench.options.backlog_seconds)
    first = next(iter(figures.values()))
    return figures | {name.replace("backlog", "backlog_ratio"): rate / first for name, rate in figures.items()}


def snapshot(bench: Bench, made: Installed) -> Round:
    """Throughput before, while and after another session holds a snapshot; a backlog of 10,000 jobs all the time."""
    seconds, figures = bench.options.seconds * 2, {}
    waiting = int(min(max(bench.rates[made.who.name], 1000), 10_000))
    with (
        bench.arena(made, BYTES=NORMAL_PAD) as place,
        place.working(bench.sizes[made.who.name], every=bench.every(made)) as crew,
        Load(place, crew) as load,
    ):
        load.keep(waiting, seconds / 2)
        figures["snapshot before"] = load.keep(waiting, seconds)
        with psycopg.connect(place.dsn) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from pg_class")
            held, jobs = load.marks[-1], bench.options.snapshot_jobs
            load.keep(waiting, bench.options.snapshot_seconds, jobs)
            passed = load.marks[-1][1] - held[1]
        released = load.marks[-1]
        load.keep(waiting, seconds / 2)
        figures["snapshot after"] = load.keep(waiting, seconds)
    between = [held] + [
        next(mark for mark in load.marks if mark[1] >= held[1] + passed * quarter / 4) for quarter in (1, 2, 3, 4)
    ]
    for quarter, ((a, n), (b, m)) in enumerate(pairwise(between), 1):
        figures[f"snapshot held {quarter}/4"] = (m - n) / max(b - a, 1e-6)
    figures["snapshot jobs"] = passed
    figures["snapshot_ratio"] = figures["snapshot held 4/4"] / figures["snapshot before"]
    bench.series[f"snapshot {made.who.name}"] = _by_second(load.marks) | {
        "events": [held[0] - load.marks[0][0], released[0] - load.marks[0][0]]
    }
    return figures


def _by_second(marks: list[tuple[float, int]]) -> Series:
    """Jobs a second in each second."""
    start, at = marks[0][0], 0.0
    times, rates, before = [], [], marks[0]
    for mark in marks:
        if mark[0] - start >= at + 1:
            rates.append((mark[1] - before[1]) / (mark[0] - before[0]))
            times.append(mark[0] - start)
            before, at = mark, mark[0] - start
    return {"seconds": times, "jobs/s": rates}


SIZES_NOW = """
select sum(pg_total_relation_size(relid))::float8, sum(n_dead_tup)::float8 from pg_stat_user_tables
where relid in ('pgqueue.job_live'::regclass, 'pgqueue.worker'::regclass, 'pgqueue.lane'::regclass)
"""


def mixed(bench: Bench, made: Installed) -> Round:
    """Priorities, delays, failures, bigger payloads at a share of what it can do; autovacuum as shipped."""
    options = bench.options
    with (
        bench.arena(made, BYTES=NORMAL_PAD, MIX=1) as place,
        place.working(bench.sizes[made.who.name], every=bench.every(made)) as crew,
        ExitStack() as stack,
    ):
        with Load(place, crew) as flat_out:
            waiting = 10_000 + int(bench.rates[made.who.name])  # of which some are delayed
            flat_out.keep(waiting, options.seconds)
            rate = flat_out.keep(waiting, options.seconds * 2) * options.mixed_share
        load = stack.enter_context(Load(place, crew))
        load.pace(rate, options.seconds)  # the delayed jobs of before come due
        conn = stack.enter_context(psycopg.connect(place.dsn, autocommit=True))
        probes = stack.enter_context(_probing(place))
        step = max(options.mixed_seconds / 60, 1)
        series: Series = {"seconds": [], "jobs/s": [], "p50 ms": [], "p99 ms": [], "live MB": [], "dead rows": []}
        started = time.monotonic()
        while (passed := time.monotonic() - started) < options.mixed_seconds:
            told = set(crew.told)
            series["jobs/s"].append(load.pace(rate, step))
            series["seconds"].append(passed + step)
            asked = probes()
            waits = sorted(1000 * (crew.told[i] - asked[i]) for i in crew.told.keys() - told if i in asked)
            for percent in (50, 99):
                at = min(len(waits) * percent // 100, len(waits) - 1)
                series[f"p{percent} ms"].append(waits[at] if waits else 0.0)
            size, dead = conn.execute(SIZES_NOW).fetchone() or (0, 0)
            series["live MB"].append(size / 1e6)
            series["dead rows"].append(dead)
    bench.series[f"mixed {made.who.name}"] = series
    tenth = max(len(series["seconds"]) // 10, 1)
    figures = {"mixed_load": rate}
    for name in ("jobs/s", "p99 ms", "live MB"):
        figures[f"mixed first {name}"] = statistics.median(series[name][:tenth])
        figures[f"mixed last {name}"] = statistics.median(series[name][-tenth:])
    figures["mixed_ratio"] = figures["mixed last jobs/s"] / figures["mixed first jobs/s"]
    return figures


@contextmanager
def _probing(place: Arena) -> Iterator[Callable[[], dict[int, float]]]:
    """Single jobs all the time; answers when each was asked for."""
    import subprocess
    import tempfile

    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(place.made.command("trickle", 10_000_000), env=place.environ, stdout=output)
        lines: list[str] = []
        position = 0

        def asked() -> dict[int, float]:
            nonlocal position
            output.seek(position)
            read = output.read()
            position = position + len(read.rpartition("\n")[0]) + (1 if "\n" in read else 0)
            lines.extend(read.rpartition("\n")[0].splitlines())
            return {int(i): float(at) for i, at in map(str.split, lines)}

        try:
            yield asked
        finally:
            process.kill()
            process.wait()


# --------------------------------------------------------------------------------------------- idle, memory


def idle(bench: Bench, made: Installed) -> Round:
    """What a worker asks that has nothing to do.

    pg_stat_database is read from another database, so the watcher does not count; what autovacuum does there is
    measured before, without workers, and subtracted.
    """
    seconds = bench.options.idle_seconds
    with bench.arena(made) as place:

        def asked() -> float:
            if place.who.on_redis:
                text = ask_redis(place.redis or "", "INFO stats")[0]
                return float(
                    next(line for line in text.splitlines() if line.startswith("total_commands")).split(":")[1]
                )
            name = place.environ["PGDATABASE"]
            return float(value(bench.watcher, "select xact_commit from pg_stat_database where datname = %s", name) or 0)

        time.sleep(bench.options.settle_seconds / 3)
        before = asked()
        time.sleep(seconds / 2)
        alone = 2 * (asked() - before)
        with place.working(_waiting(made), "serve") as crew:
            time.sleep(bench.options.settle_seconds)
            family = [pid for top in crew.pids() for pid in [top, *proc.descendants(top)]]
            before, used = asked(), sum(map(proc.cpu_seconds, family))
            time.sleep(seconds)
            crew.look()
            queries = asked() - before - alone
            cpu = sum(map(proc.cpu_seconds, family)) - used
    return {"idle": max(queries, 0) / seconds, "idle_cpu": 100 * cpu / seconds}


def memory(bench: Bench, made: Installed) -> Round:
    """Resident, after so many jobs; ours as the command that users start, with all that it imports."""
    jobs = bench.jobs(made, at_most=bench.options.memory_jobs)
    size = made.who.at(100) or "1"
    command = ["-m", "pgqueue", "work", "-A", "bench.peers.pgqueue_worker:app", "--log-level", "warning", "-c", size]
    real = [made.program, *command] if made.who.name == "pgqueue" else []
    with bench.arena(made) as place:
        place.enqueue(jobs)
        with place.working(size, every=max(jobs // 100, 1), command=real) as crew:
            wait_until(lambda: crew.look() >= jobs * 0.98, PATIENCE_SECONDS, f"{made.who.name} does not finish")
            time.sleep(bench.options.settle_seconds)
            family = {top: proc.descendants(top) for top in crew.pids()}
            sizes = [proc.megabytes(pid) for pid in [*family, *(c for found in family.values() for c in found)]]
            shared = [proc.megabytes(pid, "Pss") for pid in [*family, *(c for f in family.values() for c in f)]]
            if real:
                for process in crew.processes:
                    process.terminate()
    return {"memory": max(sizes), "memory_all": sum(shared)}


@dataclass(frozen=True)
class Measure:
    what: str
    take: Callable[[Bench, Installed], Round]
    who: Callable[[Installed], bool] = lambda _: True


def _all_but_redis(made: Installed) -> bool:
    return not made.who.on_redis


def _only(*names: str) -> Callable[[Installed], bool]:
    return lambda made: made.who.name in names


MEASURES = {
    "drain": Measure("bulk enqueue, and a backlog through one worker process", drained),
    "drain2": Measure("a backlog through two worker processes", drained_by_two),
    "single": Measure("single enqueues, one after the other", single),
    "latency": Measure("from enqueue to the start of the handler, nothing else to do", latency),
    "half-load": Measure("the same at half load", half_load),
    "handlers": Measure("handlers that take 1 ms and 20 ms", handlers),
    "payload": Measure("payloads of 8 KB", payloads),
    "idle": Measure("what a worker asks that has nothing to do", idle),
    "memory": Measure("how big a worker gets", memory),
    "scheduled": Measure("a drain beside 100,000 jobs that are not due", scheduled, _all_but_redis),
    "snapshot": Measure("a snapshot held open while 400,000 jobs pass", snapshot, _all_but_redis),
    "backlog": Measure(
        "a backlog of 10,000, 1 million, 10 million", backlog, _only("pgqueue", "pgqueuer", "graphile-worker")
    ),
    "queues": Measure("jobs in 1,000 queues", many_queues, _only("pgqueue")),
    "mixed": Measure("ten minutes of a mixed load at 80 %", mixed, _only("pgqueue")),
}


def versions(watcher: psycopg.Connection[Any]) -> dict[str, str]:
    """The settings of PostgreSQL that matter for speed and durability."""
    names = "server_version fsync synchronous_commit full_page_writes wal_level shared_buffers max_wal_size autovacuum"
    names += " autovacuum_naptime wal_compression"
    return {name: str(value(watcher, f"show {name}")) for name in names.split()}


def redis_settings(url: str) -> dict[str, str]:
    found = {"version": ask_redis(url, "INFO server")[0].split("redis_version:")[1].split()[0]}
    for name in ("appendonly", "appendfsync", "save"):
        answer = ask_redis(url, f"CONFIG GET {name}")[0]
        found[name] = str(answer[1] if len(answer) > 1 else "?")
    return found


def machine() -> dict[str, str]:
    import os
    import platform

    memory_gb = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    return {
        "cores": str(os.cpu_count()),
        "processor": model,
        "memory": f"{memory_gb:.0f} GB",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
