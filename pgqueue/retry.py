"""Retry policies as Python writes them; `pgqueue.retry_delay` in SQL computes from them.

@app.task(retry=Retry.exponential(base=5, cap=60, jitter="full"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Jitter = Literal["none", "full", "decorrelated"] | float


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy, ready for the database. Seconds everywhere; jitter as a number is percent up and down."""

    policy: dict[str, Any]

    @classmethod
    def fixed(cls, delay: float, *, jitter: Jitter = "none") -> Retry:
        return cls({"type": "fixed", "delay": delay, "jitter": jitter})

    @classmethod
    def linear(cls, base: float, step: float | None = None, *, cap: float = 86_400, jitter: Jitter = "none") -> Retry:
        """base, base + step, base + 2 × step, …"""
        return cls(
            {"type": "linear", "base": base, "step": base if step is None else step, "cap": cap, "jitter": jitter}
        )

    @classmethod
    def exponential(cls, base: float = 5, factor: float = 2, *, cap: float = 86_400, jitter: Jitter = "full") -> Retry:
        """base, base × factor, base × factor², …"""
        return cls({"type": "exponential", "base": base, "factor": factor, "cap": cap, "jitter": jitter})

    @classmethod
    def polynomial(cls, base: float = 1, power: float = 4, *, cap: float = 86_400, jitter: Jitter = 10) -> Retry:
        """base × attempt ^ power."""
        return cls({"type": "polynomial", "base": base, "power": power, "cap": cap, "jitter": jitter})

    @classmethod
    def delays(cls, delays: Sequence[float], *, jitter: Jitter = "none") -> Retry:
        """These delays, one after the other; the last one repeats."""
        return cls({"type": "list", "delays": list(delays), "jitter": jitter})
