"""The app that ticker processes in tests load by name."""

from __future__ import annotations

from pgqueue import INJECTED, App, Job

app = App()


@app.recurring("every 1d", name="by-distance", overlap="skip")
@app.recurring("0 9 * * 1-5", "eu", tz="Europe/Berlin", catch_up="latest")
@app.task(queue="r")
async def report(region: str = "all", job: Job = INJECTED) -> str:
    assert job.due_at is not None
    return f"{region} {job.due_at.isoformat()}"
