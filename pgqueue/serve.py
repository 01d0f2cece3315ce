"""A worker, or a ticker, as a process: signals, probes, several processes, reloading.

First SIGTERM, SIGINT or SIGHUP: drain. Second: out within a second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import database, probes
from pgqueue.app import App
from pgqueue.errors import ConfigError, PgqueueError
from pgqueue.ticker import Ticker, TickerSettings
from pgqueue.worker import EXIT_DONE, EXIT_HUNG, GRACE_SECONDS, Settings, Worker

logger = logging.getLogger("pgqueue.worker")
EXIT_FORCED = 70
END_SECONDS = 30.0  # beyond its drain time
CHILD = "PGQUEUE_CHILD"  # set in the environment of a process that another one looks after
WORDS = "PGQUEUE_CHILD_WORDS"  # and where it says why it cannot even begin: several would say the same
EXIT_CONFIG = 78


def work(
    app: App, settings: Settings, *, http: str | None = None, heartbeat_file: Path | None = None, processes: int = 1,
    killable: bool = False, cron: bool = False,
) -> int:  # fmt: skip
    """Run one worker in this process until it is told to stop; with `cron` a ticker beside it. One of several has
    probes of its own.

    `killable`: by its heartbeat process, when a handler blocks it past all time-outs; not under a debugger.
    """
    if processes > 1:
        number = int(os.environ[CHILD])
        http = http and probes.nth_address(http, number)
        heartbeat_file = heartbeat_file and heartbeat_file.with_name(f"{heartbeat_file.name}.{number}")
    collect_less()
    runner = asyncio.Runner()
    worker, code = runner.run(_work(app, settings, http, heartbeat_file, killable, cron))
    # Python would wait for the threads that did not stop; also for those of asyncio.to_thread(), whose handlers did.
    if worker.abandoned:
        _leave(code)
    patience = threading.Timer(GRACE_SECONDS, _leave, [code])
    patience.daemon = True
    patience.start()
    runner.close()
    patience.cancel()
    return code


def _leave(code: int) -> None:
    logging.shutdown()
    os._exit(code)


def collect_less() -> None:
    """A job makes dozens of objects that live for a moment; at Python's usual threshold the collector looks through all
    that a batch holds again and again: 25.8 µs a job instead of 19.8. Only in a process that is ours."""
    gc.collect()
    gc.freeze()  # the application's modules are here to stay
    gc.set_threshold(20_000, 20, 20)


async def _work(
    app: App, settings: Settings, http: str | None, heartbeat_file: Path | None, killable: bool, cron: bool
) -> tuple[Worker, int]:
    worker = Worker(app, settings)
    worker.killable = killable
    with ExitStack() as stack:
        stack.callback(_on_signals(worker.stop, lambda: _out(worker), worker.limit_drain))
        if http:
            host, port = stack.enter_context(probes.serve(worker, http))
            logger.info("probes at http://%s:%d/healthz, /readyz, /metrics", host, port)
        os.environ.pop(WORDS, None)  # it is configured; and what handlers start is not meant
        telling = asyncio.create_task(_tell(worker, heartbeat_file))
        try:
            if cron:
                ticker = Ticker(app, TickerSettings(listen=settings.listen, listen_url=settings.listen_url))
                return worker, await _work_and_tick(worker, ticker)
            return worker, await worker.run()
        finally:
            telling.cancel()
            probes.notify_systemd("STOPPING=1")


async def _work_and_tick(worker: Worker, ticker: Ticker) -> int:
    """Neither goes on without the other: a worker that was asked to tick and cannot should be seen to fail."""
    ticking = asyncio.create_task(ticker.run())
    ticking.add_done_callback(lambda _: worker.stop())
    try:
        code = await worker.run()
    finally:
        ticker.stop()
        await asyncio.wait({ticking})
    await ticking
    return code


def cron(app: App, settings: TickerSettings, *, http: str | None = None, heartbeat_file: Path | None = None) -> int:
    """Run one ticker in this process until it is told to stop."""
    asyncio.run(_cron(app, settings, http, heartbeat_file))
    return EXIT_DONE


async def _cron(app: App, settings: TickerSettings, http: str | None, heartbeat_file: Path | None) -> None:
    ticker = Ticker(app, settings)
    with ExitStack() as stack:
        stack.callback(_on_signals(ticker.stop, lambda: os._exit(EXIT_FORCED)))
        if http:
            host, port = stack.enter_context(probes.serve(ticker, http, probes.ticker_metrics))
            logger.info("probes at http://%s:%d/healthz, /readyz, /metrics", host, port)
        telling = asyncio.create_task(_tell_of_ticker(ticker, heartbeat_file))
        try:
            await ticker.run()
        finally:
            telling.cancel()
            probes.notify_systemd("STOPPING=1")
    logger.info("stopped after %d jobs", ticker.fired)


async def _tell_of_ticker(ticker: Ticker, heartbeat_file: Path | None) -> None:
    await ticker.started.wait()
    logger.info("ticking; the app declares %d recurring jobs", len(ticker.app.recurring.declarations))
    probes.notify_systemd("READY=1")
    while True:
        probes.touch(heartbeat_file, ticker)
        probes.notify_systemd("WATCHDOG=1")
        await asyncio.sleep(1)


async def _tell(worker: Worker, heartbeat_file: Path | None) -> None:
    await worker.started.wait()
    queues = ", ".join(
        f"{queue}={weight}" if weight != 1 else queue for queue, weight in worker.settings.queues.items()
    )
    logger.info("worker %d serves %s, %d at once; %d tasks", worker.worker_id, queues, worker.settings.concurrency,
                len(worker.app.tasks))  # fmt: skip
    probes.notify_systemd("READY=1")
    parent = os.getppid()
    while True:
        if CHILD in os.environ and os.getppid() != parent:
            parent = os.getppid()  # said once
            logger.warning("the process that looked after this one is gone")
            worker.stop()
        probes.touch(heartbeat_file, worker)
        probes.notify_systemd("WATCHDOG=1")
        await asyncio.sleep(1)


def _on_signals(
    stop: Callable[[], None], out: Callable[[], None], at_once: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Handlers at the level of the process, not of the loop: a handler of a job may be blocking that."""
    loop = asyncio.get_running_loop()
    heard = 0

    def handle(*_: object) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            at_once()
            loop.call_soon_threadsafe(stop)
        elif heard == 2:
            threading.Thread(target=out, daemon=True).start()

    before = _hear_signals(handle)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _out(worker: Worker) -> None:
    """Leave at once; hand our jobs back if the database answers quickly."""
    logger.warning("stopping at once")

    def retire() -> None:
        try:
            with psycopg.connect(worker.app.conninfo, connect_timeout=2, autocommit=True) as conn:
                for call in (*worker.last_words(), database.retire_worker(worker.worker_id)):
                    database.execute(conn, call)
        except (psycopg.Error, PgqueueError):
            pass  # the sweep does it

    thread = threading.Thread(target=retire, daemon=True)
    thread.start()
    thread.join(0.7)
    os._exit(EXIT_FORCED)


# ------------------------------------------------------------------------------- several, and reloading


def supervise(processes: int) -> int:
    """Run this same command in several processes; start again those that die.

    One that says it is wrongly configured would say so again: that ends them all. One in which a handler hangs
    asks to be started again, as often as it wants; one that crashes may do so five times a minute.
    """
    command = [sys.executable, *_this_command()]
    ear, mouth = os.pipe()
    complaint: str | None = None
    children: dict[int, subprocess.Popen[bytes]] = {}
    told: dict[int, int] = {}  # how many signals each has been sent
    died: dict[int, list[tuple[float, int]]] = {number: [] for number in range(processes)}  # when, and how
    waiting = dict.fromkeys(range(processes), 0.0)  # when to start it
    worst = EXIT_DONE
    signals = 0

    def count(*_: object) -> None:
        nonlocal signals
        signals += 1  # the loop passes it on: a process may just be starting

    _hear_signals(count)
    while True:
        for number, start_at in list(waiting.items()):
            if signals:
                del waiting[number]
            elif time.monotonic() >= start_at:
                del waiting[number]
                children[number], told[number] = _start(command, number, mouth), 0
        for number, child in list(children.items()):
            code = child.poll()
            if code is None:
                if told[number] < min(signals, 2):
                    told[number] += 1
                    child.terminate()
                continue
            del children[number]
            if signals or code == EXIT_DONE:
                worst = max(worst, abs(code))
                continue
            if code == EXIT_CONFIG:
                complaint = os.read(ear, 65536).decode().partition("\0")[0]
                count()
                continue
            died[number] = [each for each in died[number] if each[0] > time.monotonic() - 60]
            died[number].append((time.monotonic(), code))
            if sum(code != EXIT_HUNG for _, code in died[number]) > 5:
                logger.error("process %d has ended six times within a minute (last: %d): giving up", number, code)
                worst = max(worst, abs(code), 1)
                count()
                continue
            logger.warning("process %d ended with %d: starting it again", number, code)
            pause = min(2 ** len(died[number]) / 4, 5) * random.uniform(0.5, 1)  # noqa: S311
            waiting[number] = time.monotonic() + pause
        if not children and not waiting:
            os.close(ear)
            os.close(mouth)
            if complaint is not None:
                raise ConfigError(complaint)
            return worst
        time.sleep(0.1)


def _hear_signals(hear: Callable[..., None]) -> dict[signal.Signals, Any]:
    """What heard them before."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` has it ignored: that is meant
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, hear) for number in numbers}


def _start(command: Sequence[str], number: int, mouth: int | None = None) -> subprocess.Popen[bytes]:
    environ, fds = {**os.environ, CHILD: str(number)}, list[int]()
    if mouth is not None:
        environ[WORDS], fds = str(mouth), [mouth]
    # In a session of its own: Ctrl-C reaches it through us, once.
    return subprocess.Popen(command, env=environ, pass_fds=fds, start_new_session=True)


def tell(error: ConfigError) -> bool:
    """Let the process that looks after this one say it, if there is one that does."""
    if WORDS not in os.environ:
        return False
    os.write(int(os.environ[WORDS]), f"{error}\0".encode())
    return True


def _this_command() -> list[str]:
    # `python -m pgqueue …` and the script `pgqueue …` alike.
    return ["-m", "pgqueue", *sys.argv[1:]]


def reload(folder: Path, drain_seconds: float) -> int:
    """Run this same command in a child; when a Python file changes, drain that child and start another."""
    try:
        import watchfiles
    except ImportError:
        raise ConfigError("--reload needs watchfiles: pip install watchfiles") from None
    command = [sys.executable, *_this_command()]
    stop, enough = threading.Event(), threading.Event()

    def hear(*_: object) -> None:
        enough.set() if stop.is_set() else stop.set()

    _hear_signals(hear)
    child, said = None, False
    try:
        for changes in watchfiles.watch(
            folder, watch_filter=watchfiles.PythonFilter(), stop_event=stop, rust_timeout=200, yield_on_timeout=True,
            raise_interrupt=False,
        ):  # fmt: skip
            if child is None:
                child = _start(command, 0)  # not sooner: a change before we watch would be missed
                continue
            if changes:
                logger.info("%s changed: starting anew", ", ".join(sorted({Path(path).name for _, path in changes})))
            elif child.poll() is None:
                continue
            elif child.returncode == EXIT_DONE:
                return EXIT_DONE
            elif child.returncode != EXIT_HUNG:
                if not said:
                    logger.warning("the worker ended with %d: waiting for a change of the code", child.returncode)
                said = True
                continue
            said = False
            _end(child, enough, drain_seconds)
            child = _start(command, 0)
    finally:
        if child is not None:
            _end(child, enough, drain_seconds)
    return EXIT_FORCED if enough.is_set() else EXIT_DONE


def _end(child: subprocess.Popen[bytes], enough: threading.Event, drain_seconds: float) -> None:
    """Let it drain; pass on the signal of somebody who has had enough; kill it if it hangs."""
    until = time.monotonic() + drain_seconds + END_SECONDS
    if child.poll() is None:
        child.terminate()
    told = False
    while child.poll() is None:
        if enough.is_set() and not told:
            told = True
            child.terminate()
        if time.monotonic() > until:
            child.kill()
        time.sleep(0.05)
