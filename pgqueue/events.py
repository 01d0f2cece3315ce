"""What a worker tells: to hooks, and to whoever reads its log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Event = Literal["claimed", "completed", "failed", "dead", "snoozed", "cancelled", "released", "lease_lost"]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something happened to a job. It has been committed, except for claimed."""

    event: Event
    id: int
    task: str
    queue: str
    attempt: int
    seconds: float | None = None  # how long the attempt ran
    error: BaseException | None = None
    delay_seconds: float | None = None  # until the next attempt


Hook = Callable[[JobEvent], Awaitable[None] | None]
