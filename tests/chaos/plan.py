"""What is to go wrong, and when: made from a seed, so that the same seed makes the same plan.

A plan says what is done to which worker or to the server; what state they are in at that moment is up to the machine.
Nothing here asks for a result: only the checker judges.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

What = Literal[
    "kill worker", "kill family", "kill heartbeat", "kill child", "kill ticker", "pause", "pause and kill", "deploy",
    "restart server", "terminate connections", "drop", "hang", "delay", "reset", "exhaust connections", "fill disk",
    "pause queue",
]  # fmt: skip
KILLS: dict[What, int] = {
    "kill worker": 55, "kill family": 15, "kill heartbeat": 10, "kill child": 10, "kill ticker": 10,
}  # fmt: skip
NETWORK: tuple[What, ...] = ("drop", "hang", "delay", "reset")


@dataclass(frozen=True)
class Size:
    seconds: float = 45.0
    jobs: int = 20_000
    kills: int = 50
    pauses: int = 15
    restarts: int = 2
    terminations: int = 6
    network: int = 6
    exhaustions: int = 1
    full_disks: int = 1
    deploys: int = 3
    queue_pauses: int = 2
    workers: int = 3
    tickers: int = 2


@dataclass(frozen=True, order=True)
class Action:
    at: float  # seconds after the beginning
    what: What
    target: int = 0  # which worker or ticker
    seconds: float = 0.0  # how long


def make(seed: int, size: Size, lease: float) -> list[Action]:
    chance = random.Random(seed)  # noqa: S311

    def moment() -> float:
        return round(chance.uniform(0.05, 0.95) * size.seconds, 3)

    def some(what: What, count: int, shortest: float, longest: float, targets: int = 1) -> list[Action]:
        return [
            Action(moment(), what, chance.randrange(targets), round(chance.uniform(shortest, longest), 3))
            for _ in range(count)
        ]

    plan: list[Action] = []
    for what in chance.choices(list(KILLS), list(KILLS.values()), k=size.kills):
        plan += some(what, 1, 0, 0, size.tickers if what == "kill ticker" else size.workers)
    plan += some("pause", size.pauses - size.pauses // 5, lease + 0.5, lease + 2, size.workers)
    plan += some("pause and kill", size.pauses // 5, lease, lease + 1, size.workers)
    plan += some("deploy", size.deploys, 0, 0, size.workers)
    plan += some("restart server", size.restarts, 0, 0)
    plan += some("terminate connections", size.terminations, 0, 0)
    for n in range(size.network):
        plan += some(NETWORK[n % len(NETWORK)], 1, 1, lease + 2)
    plan += some("exhaust connections", size.exhaustions, 1, 3)
    plan += some("fill disk", size.full_disks, 1, 3)
    plan += some("pause queue", size.queue_pauses, 2, 4)
    return sorted(plan)


def counts(plan: list[Action]) -> Counter[str]:
    return Counter(action.what for action in plan)
