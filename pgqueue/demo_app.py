"""The app of `pgqueue demo`: what a user's own module looks like."""

from __future__ import annotations

import asyncio
from typing import Any

from pgqueue import INJECTED, App, Job, Retry

app = App()


@app.task(queue="email")
async def send_receipt(order_id: int) -> dict[str, Any]:
    return {"sent": order_id}


@app.task(queue="reports")
def monthly_report(month: str) -> dict[str, Any]:
    return {"pages": 12, "month": month}


@app.task(queue="billing", retry=Retry.fixed(0.5))
async def charge_card(order_id: int, job: Job = INJECTED) -> dict[str, Any]:
    if job.attempt < 3:
        raise ConnectionError(f"payment gateway timed out (order {order_id})")
    return {"charged": order_id}


@app.task(queue="billing", max_attempts=2, retry=Retry.exponential(base=0.2))
def parse_invoice(file: str) -> dict[str, Any]:
    raise ValueError(f"{file}: not a PDF")


@app.task(queue="images")
async def resize(image: str, width: int) -> str:
    return f"{image}@{width}"


@app.task(queue="images")
async def publish(album: list[str]) -> dict[str, Any]:
    return {"published": album}


@app.task(queue="reports")
async def count_stock(job: Job = INJECTED) -> dict[str, Any]:
    return {"stock": 42, "at": job.due_at}


@app.task(queue="imports")
async def import_file(rows: int, job: Job = INJECTED) -> dict[str, Any]:
    """Hangs at its first attempt, until somebody kills its worker."""
    if job.attempt == 1:
        await asyncio.sleep(3600)
    return {"imported": rows}
