"""OpenTelemetry, where the application has set it up: a span of the enqueue, linked from the one that runs the job.

A link, not a parent: the job may run hours later, and again tomorrow.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgqueue.job import Job


def is_on() -> bool:
    """The application has loaded the SDK; the API alone does nothing, and should cost nothing."""
    return "opentelemetry.sdk.trace" in sys.modules


def with_trace(meta: Mapping[str, Any] | None, queue: str, task: str) -> Mapping[str, Any] | None:
    """The meta of a job, with the context of a span that stands for its enqueue, within the one that is current.

    Outside of any span there is nothing to carry. The span has no duration: whether and when the job exists is decided
    by the caller's transaction.
    """
    if not is_on():
        return meta
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not trace.get_current_span().get_span_context().is_valid:
        return meta
    made = trace.get_tracer("pgqueue").start_span(
        f"create {task}", kind=trace.SpanKind.PRODUCER, attributes=_attributes("create", queue, task)
    )
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(made))
    made.end()
    return {**(meta or {}), **carrier}


def _attributes(operation: str, queue: str, task: str) -> dict[str, str | int]:
    """By the semantic conventions for messaging."""
    return {
        "messaging.system": "pgqueue",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "pgqueue.task": task,
    }


async def span(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
    """Middleware: a span around the handler, by the messaging conventions."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    enqueuer = trace.get_current_span(TraceContextTextMapPropagator().extract(job.meta)).get_span_context()
    attributes = _attributes("process", job.queue, job.task)
    attributes |= {"messaging.message.id": str(job.id), "pgqueue.attempt": job.attempt}
    with trace.get_tracer("pgqueue").start_as_current_span(
        f"process {job.task}", kind=trace.SpanKind.CONSUMER, attributes=attributes,
        links=[trace.Link(enqueuer)] if enqueuer.is_valid else [],
    ) as current:  # fmt: skip
        try:
            return await run()
        except BaseException as error:
            current.set_attribute("error.type", type(error).__name__)
            raise
