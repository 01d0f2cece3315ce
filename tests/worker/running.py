"""Workers for tests: in this process, or as real processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgqueue import App, Settings, Worker
from tests.support import wait_until

ROOT = Path(__file__).parents[2]


async def run_burst(app: App, **settings: Any) -> Worker:
    """Works until nothing is left to do."""
    worker = Worker(app, Settings(**{"burst": True, "poll_seconds": 0.2, **settings}))
    await worker.run()
    return worker


class Process:
    """`pgqueue work`, or another command, on the apps of tests/worker."""

    def __init__(
        self,
        dsn: str,
        log: Path,
        *arguments: str,
        app: str = "tests.worker.apps:app",
        command: str = "work",
        package: Path = ROOT,
        **environ: str,
    ) -> None:
        """`package`: the folder of another pgqueue than the one under test."""
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pgqueue", command, "-A", app, "--log-format", "json", *arguments],
                env={**os.environ, "DATABASE_URL": dsn, "PYTHONPATH": f"{package}:{ROOT}", **environ}, cwd=package,
                stderr=stderr,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def said(self, text: str) -> bool:
        return any(text in line["message"] for line in self.logged())

    def wait_ready(self) -> Process:
        wait_until(lambda: self.said(" serves ") or self.said("ticking") or self.process.poll() is not None, 30)
        assert self.process.poll() is None, self._log.read_text()
        return self

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 40) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def processes(dsn: str, folder: Path) -> Iterator[Any]:
    """For a fixture: `start(*arguments)` starts a worker; all end with the test."""
    started: list[Process] = []

    def start(*arguments: str, **options: Any) -> Process:
        process = Process(dsn, folder / f"worker-{len(started)}.log", *arguments, **options)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.end()
