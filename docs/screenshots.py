"""Makes the screenshots of the README: python docs/screenshots.py [folder]. Needs Chromium, and pgqueue[embedded,web].

An embedded PostgreSQL with a shop's queues that look as such queues do on a bad day, the page itself, a real browser.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import uvicorn

from pgqueue import database as db
from pgqueue import embedded, schema, web
from pgqueue.web import access

Conn = psycopg.Connection[Any]
HERE = Path(__file__).parent
SHOTS = (  # name, path, width, height, dark
    ("overview", "/", 1440, 900, False),
    ("overview-dark", "/", 1440, 900, True),
    ("overview-phone", "/", 390, 844, False),
    ("job", "/jobs/{dead}", 1280, 860, False),
    ("dead", "/dead", 1280, 760, True),
)
TASKS = (  # queue, task, jobs a minute, share that fails, seconds to run
    ("email", "send_receipt", 190, 0.03, 0.08), ("email", "send_newsletter", 60, 0.01, 0.3),
    ("billing", "charge_card", 24, 0.02, 1.1), ("imports", "import_catalogue", 3, 0.05, 22.0),
    ("search", "index_product", 320, 0.0, 0.02), ("reports", "monthly_report", 0.5, 0.0, 70.0),
)  # fmt: skip
ERRORS = (
    ("HTTPStatusError", "status 503 for order '{}' from https://mail.example/v3/send"),
    ("TimeoutError", "no answer from the bank within 30 s for charge {}"),
    ("KeyError", "'sku' in line {} of the catalogue"),
)


@contextmanager
def served(conninfo: str) -> Iterator[str]:
    """The page on a port of its own, in a thread."""
    page = web.create(conninfo, authorize=access.anyone(True), environment="staging")
    server = uvicorn.Server(uvicorn.Config(page, host="127.0.0.1", port=0, log_level="error", lifespan="on",
                                           timeout_graceful_shutdown=1))  # fmt: skip
    sock = server.config.bind_socket()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    while not server.started and thread.is_alive():
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def fill(conn: Conn) -> int:
    """A day in a shop; the id of a job that died of three errors."""
    chance = random.Random(7)  # noqa: S311
    workers = [
        db.execute(conn, db.register_worker(
            f"worker-{n}.shop:{4000 + n}", queues, 3600,
            {"version": "0.1.0", "concurrency": slots, "tasks": [task for _, task, *_ in TASKS]},
        ))
        for n, (queues, slots) in enumerate(
            [(["email", "search"], 12), (["email", "search"], 12), (["billing", "imports"], 8)], start=1
        )
    ]  # fmt: skip
    _history(conn, chance)
    _live(conn, chance, workers)
    dead = _dead(conn, workers)
    run(conn, db.set_recurring("nightly-report", {"task": "monthly_report", "queue": "reports", "cron": "0 2 * * 1-5",
                                                  "timezone": "Europe/Berlin"}))  # fmt: skip
    run(conn, db.set_queue("billing", {"max_running": 4}))
    run(conn, db.pause("imports", reason="the supplier's catalogue is broken"))
    run(conn, db.roll_up())
    return dead


def run(conn: Conn, call: db.Call[Any]) -> Any:
    return db.execute(conn, call)


def _history(conn: Conn, chance: random.Random) -> None:
    """What would have been counted: an hour by the minute."""
    for minute in range(61):
        wave = 1 + 0.35 * math.sin(minute / 9) + chance.uniform(-0.1, 0.1)
        trouble = 30 <= minute <= 44
        for queue, task, rate, share, seconds in TASKS:
            jobs = max(int(rate * wave), 0)
            bad = int(jobs * (0.3 if trouble and queue == "email" else share))
            wait = (9.0 if trouble and queue == "email" else 0.04) * chance.uniform(0.7, 1.6)
            for outcome, count in (("completed", jobs - bad), ("failed", bad), ("dead", bad // 60)):
                if count:
                    _tally(conn, 61 - minute, count, wait, seconds * chance.uniform(0.7, 1.8), outcome, queue, task)
        depth = int(
            140 + 60 * wave + (minute - 30) * 90 * trouble + max(0, 1300 - abs(minute - 45) * 160) * (minute > 44)
        )
        conn.execute(
            "insert into pgqueue.queue_sample (at, queue, pending, scheduled, blocked, running, dead, workers,"
            " oldest_waiting_seconds) values (date_trunc('minute', now()) - make_interval(mins => %s), 'email', %s, 40,"
            " 0, %s, 30, 2, %s) on conflict do nothing",
            [61 - minute, max(depth, 5), 16 + minute % 5, max(depth, 5) / 60],
        )


def _tally(
    conn: Conn, minutes: int, jobs: int, wait: float, seconds: float, outcome: str, queue: str, task: str
) -> None:
    parts = [(0.5, 0.6), (0.4, 1.2), (0.1, 4.0)]  # most are quick, a few are not
    for share, times in parts:
        conn.execute(
            "insert into pgqueue.tally (at, jobs, wait_bucket, run_bucket, outcome, queue, task)"
            " values (date_trunc('minute', now()) - make_interval(mins => %s), %s, %s, %s, %s, %s, %s)",
            [
                minutes,
                max(round(jobs * share), 1),
                math.floor(4 * math.log2(wait * times)),
                math.floor(4 * math.log2(seconds * times)),
                outcome,
                queue,
                task,
            ],
        )


def _live(conn: Conn, chance: random.Random, workers: list[int]) -> None:
    for queue, task, rate, *_ in TASKS:
        payloads = [{"order_id": 70_000 + n} for n in range(int(rate) + 2)]
        run(conn, db.enqueue_many(queue, task, payloads, tags=["eu"] if queue == "email" else None))
    for n in range(60):
        run(conn, db.enqueue("email", "send_newsletter", {"list": n}, run_in=timedelta(minutes=n + 5)))
    for worker, queues, count in ((workers[0], ["email", "search"], 9), (workers[1], ["email", "search"], 11),
                                  (workers[2], ["billing", "imports"], 4)):  # fmt: skip
        claimed = run(conn, db.claim(worker, queues, count))
        for job in claimed[:3]:
            run(conn, db.progress(worker, job.id, job.token, round(chance.uniform(0.2, 0.9), 2)))
    conn.execute("update pgqueue.job_live set rank_at = rank_at - interval '7 minutes' where queue = 'reports'")


def _dead(conn: Conn, workers: list[int]) -> int:
    for kind, (count, queue, task) in enumerate(
        [(46, "email", "send_receipt"), (11, "billing", "charge_card"), (4, "imports", "import_catalogue")]
    ):
        error_type, words = ERRORS[kind]
        for n in range(count):
            run(conn, db.enqueue(queue, task, {"order_id": 7_000 + n}, max_attempts=1, priority=90))
            (job,) = run(conn, db.claim(workers[0], [queue], 1))
            told = db.Failure(job.id, job.token, words.format(f"c4ca{n:04x}"), error_type, fatal=True)
            run(conn, db.fail(workers[0], [told]))
    story = run(conn, db.enqueue(
        "billing", "charge_card", {"order_id": 4711, "amount": "129.90", "currency": "EUR", "card_number": "4111 1111"},
        key="charge:4711", max_attempts=3, priority=100, tags=["eu", "vip"], retry={"type": "fixed", "delay": 30},
    )).id  # fmt: skip
    for attempt in range(1, 4):
        conn.execute("update pgqueue.job_live set run_at = clock_timestamp() where id = %s", [story])
        run(conn, db.promote("billing"))
        (job,) = run(conn, db.claim(workers[2], ["billing"], 1))
        run(conn, db.fail(workers[2], [db.Failure(
            job.id, job.token, f"no answer from the bank within 30 s for charge ch_{attempt}9f2", "TimeoutError",
            'Traceback (most recent call last):\n  File "shop/billing.py", line 41, in charge_card\n'
            "    answer = await bank.charge(order, amount)\n"
            '  File "shop/bank.py", line 88, in charge\n    raise TimeoutError(f"no answer from the bank …")\n'
            "TimeoutError: no answer from the bank within 30 s",
        )]))  # fmt: skip
    # As if it had taken its time.
    conn.execute(
        "update pgqueue.job_attempt set started_at = started_at - make_interval(secs => (4 - attempt) * 62),"
        " finished_at = finished_at - make_interval(secs => (4 - attempt) * 62 - 30) where job_id = %s", [story],
    )  # fmt: skip
    conn.execute(
        "update pgqueue.job_dead set enqueued_at = enqueued_at - interval '200 seconds',"
        " finished_at = finished_at - interval '32 seconds' where id = %s", [story],
    )  # fmt: skip
    return int(story)


def shoot(base: str, dead: int, folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    folder.mkdir(exist_ok=True, parents=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"],
        )
        for name, path, width, height, dark in SHOTS:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
                timezone_id="Europe/Berlin", locale="en-GB",
            )  # fmt: skip
            page.goto(base + path.format(dead=dead))
            page.wait_for_selector("#live.on")
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images"
    with embedded.temporary() as server:
        schema.migrate(server.url())
        with psycopg.connect(server.url(), autocommit=True) as conn:
            dead = fill(conn)
        with served(server.url()) as base:
            shoot(base, dead, folder)
    print(json.dumps({path.name: path.stat().st_size for path in sorted(folder.glob("*.png"))}))


if __name__ == "__main__":
    main()
