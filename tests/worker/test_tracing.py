from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pgqueue import App
from tests.support import Conn, job
from tests.worker.running import run_burst


@pytest.fixture
def spans() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


async def test_the_span_that_runs_a_job_is_linked_to_the_one_that_enqueued_it(
    app: App, conn: Conn, spans: InMemorySpanExporter
) -> None:
    @app.task(queue="email")
    async def send(order: int) -> None: ...

    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        handle = await send.using(meta={"by": "web"}).aenqueue(7)
    assert job(conn, handle.id)["meta"]["by"] == "web"
    await run_burst(app, queues={"email": 1})
    (ran,) = [span for span in spans.get_finished_spans() if span.name == "process send"]
    (made,) = [span for span in spans.get_finished_spans() if span.name == "create send"]
    assert (made.kind, ran.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert made.parent is not None
    assert made.parent.span_id == checkout.get_span_context().span_id
    assert [link.context.span_id for link in ran.links] == [made.context.span_id]
    assert ran.context.trace_id != made.context.trace_id, "a link, not a parent"
    assert ran.attributes is not None
    assert (ran.attributes["messaging.destination.name"], ran.attributes["messaging.message.id"]) == (
        "email",
        str(handle.id),
    )


async def test_a_job_enqueued_outside_of_any_span_runs_without_a_link(
    app: App, conn: Conn, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def send() -> None: ...

    handle = await send.aenqueue()
    assert job(conn, handle.id)["meta"] is None
    await run_burst(app)
    (ran,) = [span for span in spans.get_finished_spans() if span.name == "process send"]
    assert list(ran.links) == []


async def test_a_failure_is_an_error_of_the_span_and_names_its_class(app: App, spans: InMemorySpanExporter) -> None:
    @app.task(max_attempts=1)
    async def send() -> None:
        raise ConnectionResetError("gone")

    await send.aenqueue()
    await run_burst(app)
    (ran,) = [span for span in spans.get_finished_spans() if span.name == "process send"]
    assert ran.attributes is not None
    assert (ran.status.status_code, ran.attributes["error.type"]) == (trace.StatusCode.ERROR, "ConnectionResetError")
    assert [event.name for event in ran.events] == ["exception"]
