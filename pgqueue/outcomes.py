"""What a handler raises to say how its attempt should end.

Outcome
├── RetryLater    failed; try again after a time of my choosing      costs an attempt
├── Fatal         failed; do not try again                           dead at once
├── Snooze        not now; run me later                              costs no attempt
├── RateLimited   somebody asked me to slow down                     costs no attempt
└── Cancel        not needed any more                                cancelled
"""

from __future__ import annotations

from datetime import timedelta


class Outcome(Exception):
    """How an attempt should end."""


class _After(Outcome):
    def __init__(self, in_: float | timedelta, reason: str = "") -> None:
        self.seconds = in_.total_seconds() if isinstance(in_, timedelta) else float(in_)
        if not 0 <= self.seconds <= 315_360_000:
            raise ValueError(f"{type(self).__name__} takes 0 seconds to ten years, not {in_!r}")
        super().__init__(reason or f"{type(self).__name__} in {self.seconds:g} s")


class RetryLater(_After):
    """The attempt failed; the next one starts after this time instead of the policy's."""


class Snooze(_After):
    """Run me later; this attempt does not count."""


class RateLimited(_After):
    """The other side wants fewer calls; this attempt does not count, and until then nothing else of the job's group (of
    its queue, if it has none) is started: the others would only be told the same."""

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        super().__init__(after, reason)


class Fatal(Outcome):
    """Retrying is pointless: the job is dead."""


class Cancel(Outcome):
    """The job is not needed any more."""


class Stopped(BaseException):
    """Raised in a handler that asks `job.heartbeat()` after it was told to stop; not an `Exception`, so that a broad
    `except` does not swallow it."""
