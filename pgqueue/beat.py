"""The heartbeat of a worker, in a process of its own.

A thread would not do: C code that holds the GIL (a regular expression that backtracks for 30 s) stops every thread of
its process, and a worker that works would be declared lost. This process imports nothing but the driver, beats the
worker's row, and writes when it last did so into memory that the worker shares.

It must not outlive the worker, nor beat for one that has been stopped (SIGSTOP, a debugger): standard input reaches its
end when the worker is gone, or we get another parent (a process that a handler forked may hold the pipe open), and a
stopped process is seen in /proc.

Nor for one that nothing can wake any more: a handler that blocks the event loop, or holds the GIL, past its time-out
would keep its lease, and all jobs of its worker, for ever. The worker says until when it may be blocked; this process
kills it then, and the sweep sees to its jobs.
"""

from __future__ import annotations

import asyncio
import json
import math
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import psycopg

# worker id, when the last good beat was sent, whether the worker was declared lost
_STATE = struct.Struct("qd?")
_LIMIT = struct.Struct("d")  # by time.monotonic(): from then on the worker is to be killed. It alone writes this
_LIMIT_AT, _SIZE = 24, 32
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


def now() -> float:
    """Seconds on a clock that all processes of this machine share."""
    return time.clock_gettime(_CLOCK)


class Beat:
    """The worker's side."""

    def __init__(self, conninfo: str, lease_seconds: int) -> None:
        self._conninfo = conninfo
        self._lease_seconds = lease_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._worker_id = 0
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the mapping keeps it
        file.truncate(_SIZE)
        self._file: IO[bytes] = file
        self._memory = mmap.mmap(file.fileno(), _SIZE)
        self.limit(math.inf)

    def limit(self, kill_at: float) -> None:
        """If nobody says otherwise, kill the worker then (by time.monotonic(), which stands still with the machine)."""
        self._memory[_LIMIT_AT:_SIZE] = _LIMIT.pack(kill_at)

    def start(self, worker_id: int, sent_at: float) -> None:
        """Beat for this worker from now on; `sent_at` is when it was registered."""
        self._worker_id = worker_id
        self._memory[: _STATE.size] = _STATE.pack(worker_id, sent_at, False)
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from pgqueue.beat import main; main()", str(self._file.fileno())],
                stdin=subprocess.PIPE, pass_fds=[self._file.fileno()], start_new_session=True,
            )  # fmt: skip
        # Not in the arguments: every user of the machine can read those.
        self._send(
            {
                "worker_id": worker_id,
                "conninfo": self._conninfo,
                "parent": os.getpid(),
                "lease_seconds": self._lease_seconds,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # killed a moment ago: ensure() sees it

    def ensure(self) -> None:
        """Start it again if somebody killed it."""
        if self._process is not None and self._process.poll() is not None:
            _, sent_at, _ = _STATE.unpack(self._memory[: _STATE.size])
            self.start(self._worker_id, sent_at)

    def beaten(self, sent_at: float) -> None:
        """The worker beat by itself, too."""
        worker_id, last, lost = _STATE.unpack(self._memory[: _STATE.size])
        if sent_at > last:
            self._memory[: _STATE.size] = _STATE.pack(worker_id, sent_at, lost)

    @property
    def leased_until(self) -> float:
        """Nothing may be started after this moment, by now(): measured from when the last good beat was sent."""
        return float(_STATE.unpack(self._memory[: _STATE.size])[1]) + self._lease_seconds

    @property
    def lost(self) -> bool:
        worker_id, _, lost = _STATE.unpack(self._memory[: _STATE.size])
        return bool(lost and worker_id == self._worker_id)

    async def stop(self) -> None:
        if (process := self._process) is not None:
            self._process = None
            assert process.stdin is not None  # noqa: S101
            process.stdin.close()
            try:
                await asyncio.wait_for(asyncio.to_thread(process.wait), 2)
            except TimeoutError:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._memory.close()
        self._file.close()


# ------------------------------------------------------------------------------------ the other process


def main() -> None:
    memory = mmap.mmap(int(sys.argv[1]), _SIZE)
    signal.signal(signal.SIGALRM, _give_up)
    told: dict[str, Any] = {}
    unread = b""
    conn: psycopg.Connection[Any] | None = None
    beat_at = 0.0
    while True:
        readable, _, _ = select.select([0], [], [], min(max(beat_at - now(), 0), 1) if told else None)
        if told and os.getppid() != told["parent"]:
            return  # the worker is gone, though somebody holds the pipe open
        if told and _overdue(memory, told):
            return
        if readable:
            received = os.read(0, 65536)
            if not received:
                return  # the worker is gone
            *lines, unread = (unread + received).split(b"\n")
            if lines:
                told = json.loads(lines[-1])
        elif now() < beat_at:
            continue
        if not told or _stopped(told["parent"]):
            beat_at = now() + 0.5
            continue
        worker_id, lease = told["worker_id"], told["lease_seconds"]
        options = {"connect_timeout": max(2, lease // 3), "autocommit": True, "application_name": "pgqueue beat"}
        try:
            # A beat that hangs longer than this is worth nothing: try another connection.
            signal.setitimer(signal.ITIMER_REAL, max(lease / 2, 1))
            if conn is None:
                conn = psycopg.connect(told["conninfo"], **options)
            sent_at = now()
            row = conn.execute("select alive from pgqueue.heartbeat(%s)", [worker_id], prepare=False).fetchone()
            alive = bool(row and row[0])
            if not _stopped(told["parent"]):
                memory[: _STATE.size] = _STATE.pack(worker_id, sent_at if alive else 0.0, not alive)
            beat_at = now() + lease / 3 * random.uniform(0.8, 1)  # noqa: S311
        except (psycopg.Error, TimeoutError):
            # The worker itself says what is wrong with the database; two voices would be one too many.
            if conn is not None:
                conn.close()
            conn = None
            beat_at = now() + min(1.0, lease / 10) * random.uniform(0.5, 1)  # noqa: S311
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _overdue(memory: mmap.mmap, told: dict[str, Any]) -> bool:
    if time.monotonic() < _LIMIT.unpack(memory[_LIMIT_AT:_SIZE])[0] or _stopped(told["parent"]):
        return False
    # One that was stopped until now gets the time to see for itself how late it is.
    time.sleep(2)
    if time.monotonic() < _LIMIT.unpack(memory[_LIMIT_AT:_SIZE])[0] or os.getppid() != told["parent"]:
        return False
    print(
        f"pgqueue: worker {told['worker_id']} has been blocked by a handler past its time-out: killing it;"
        " its jobs go to others after the lease (a plain def or runs_in=\"process\" would block nobody)",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    os.kill(told["parent"], signal.SIGKILL)
    return True


def _give_up(*_: object) -> None:
    raise TimeoutError("the database does not answer")


def _stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        if Path("/proc/self/stat").exists():
            return True  # it is gone
        shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
        state = shown.stdout.strip()[:1] or "Z"
    return state in ("T", "t", "Z", "X")
