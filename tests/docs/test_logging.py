"""The recipes of docs/logging.md do what they say."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgqueue import App, current_job
from tests.worker.running import run_burst

TEXT = (Path(__file__).parents[2] / "docs" / "logging.md").read_text()
STDLIB, STRUCTLOG = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@contextmanager
def root_as_it_was() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers[:] = []
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


async def test_a_handler_of_ones_own_shows_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> None:
        logging.getLogger("shop").info("inside")

    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with root_as_it_was():
        exec(STDLIB, {})  # noqa: S102
        handle = await work.aenqueue()
        await run_burst(app)
        logging.getLogger("shop").info("outside")
    assert f"INFO inside job={handle.id}\n" in written.getvalue()
    assert "INFO outside job=-\n" in written.getvalue()


async def test_structlog_shows_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: dict[str, Any] = {}
    processors = SimpleNamespace(add_log_level=None, JSONRenderer=lambda: None)
    structlog = SimpleNamespace(configure=lambda **options: chosen.update(options), processors=processors)
    monkeypatch.setitem(sys.modules, "structlog", structlog)
    exec(STRUCTLOG, {})  # noqa: S102
    add_job = chosen["processors"][0]

    @app.task(queue="email")
    async def work() -> Any:
        return [add_job(None, "info", {"event": "inside", "task": "mine"}), current_job().id]

    handle = await work.aenqueue()
    await run_burst(app, queues={"email": 1})
    event, id = await handle.aresult(5)
    assert event == {"event": "inside", "task": "mine", "job_id": id, "queue": "email", "attempt": 1}
    assert add_job(None, "info", {"event": "outside"}) == {"event": "outside"}


def test_the_line_that_is_shown_is_one() -> None:
    (line,) = re.findall(r"```json\n(.*?)\n```", TEXT)
    assert list(json.loads(line)) == ["at", "level", "message", "logger", "job_id", "task", "queue", "attempt"]
