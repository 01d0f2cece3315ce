"""A job queue that lives in your own PostgreSQL."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgqueue.app import App
    from pgqueue.arguments import INJECTED
    from pgqueue.batch import Batch
    from pgqueue.errors import (
        InvalidArgument,
        JobCancelled,
        JobDead,
        JobNotFound,
        KeyTaken,
        LeaseLost,
        PayloadError,
        PgqueueError,
        QueueFull,
        ResultTimeout,
    )
    from pgqueue.events import JobEvent
    from pgqueue.flows import Flow, FlowHandle, chain, gather, parent, parents
    from pgqueue.handle import JobHandle
    from pgqueue.job import Job, current_job
    from pgqueue.outcomes import Cancel, Fatal, RateLimited, RetryLater, Snooze, Stopped
    from pgqueue.retry import Retry
    from pgqueue.task import Task
    from pgqueue.ticker import Ticker, TickerSettings
    from pgqueue.worker import Settings, Worker

__version__ = "0.1.0"

_HOMES = {
    "app": ["App"],
    "arguments": ["INJECTED"],
    "batch": ["Batch"],
    "errors": [
        "InvalidArgument", "JobCancelled", "JobDead", "JobNotFound", "KeyTaken", "LeaseLost", "PayloadError",
        "PgqueueError", "QueueFull", "ResultTimeout",
    ],
    "events": ["JobEvent"],
    "flows": ["Flow", "FlowHandle", "chain", "gather", "parent", "parents"],
    "handle": ["JobHandle"],
    "job": ["Job", "current_job"],
    "outcomes": ["Cancel", "Fatal", "RateLimited", "RetryLater", "Snooze", "Stopped"],
    "retry": ["Retry"],
    "task": ["Task"],
    "ticker": ["Ticker", "TickerSettings"],
    "worker": ["Settings", "Worker"],
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "INJECTED",
    "App",
    "Batch",
    "Cancel",
    "Fatal",
    "Flow",
    "FlowHandle",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobEvent",
    "JobHandle",
    "JobNotFound",
    "KeyTaken",
    "LeaseLost",
    "PayloadError",
    "PgqueueError",
    "QueueFull",
    "RateLimited",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "Settings",
    "Snooze",
    "Stopped",
    "Task",
    "Ticker",
    "TickerSettings",
    "Worker",
    "chain",
    "current_job",
    "gather",
    "parent",
    "parents",
]


def __getattr__(name: str) -> Any:
    # On first use: the heartbeat's process, and commands that need no app, should not load all of it.
    if name not in _HOME:
        raise AttributeError(f"module 'pgqueue' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pgqueue.{_HOME[name]}"), name)
    globals()[name] = value
    return value
