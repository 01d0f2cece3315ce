"""Threads and luck, once: what the fixed interleavings may have forgotten."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pgqueue import database as db
from tests.race.steps import complete
from tests.support import Conn, claim, rows, value, worker

THREADS, CALLS, KEYS = 8, 125, 4


def test_a_thousand_racing_enqueues_of_few_keys_always_return_a_job_and_never_make_two(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    stop = threading.Event()
    ran: Counter[int] = Counter()

    def produce(producer: Conn, n: int) -> list[tuple[str, db.Enqueued]]:
        keys = [f"k{(n + i) % KEYS}" for i in range(CALLS)]
        return [(key, db.execute(producer, db.enqueue("q", "t", {"key": key}, key=key))) for key in keys]

    def consume(consumer: Conn, worker_id: int) -> None:
        while True:
            last = stop.is_set()
            jobs = claim(consumer, worker_id, 10)
            keys = [job.payload["key"] for job in jobs]
            assert len(set(keys)) == len(keys), "two live jobs of one key"
            ran.update(job.id for job in jobs)
            assert complete(consumer, worker_id, *jobs) == []
            if last and not jobs:
                return

    worker_id = worker(conn)
    consumers = [connect() for _ in range(2)]
    producers = [connect() for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS + 2) as pool:
        eaten = [pool.submit(consume, consumer, worker_id) for consumer in consumers]
        made = [pool.submit(produce, producer, n) for n, producer in enumerate(producers)]
        try:
            answers = [answer for future in made for answer in future.result()]
        finally:
            stop.set()
        for done in eaten:
            done.result()

    stored = {job["id"]: job for job in rows(conn, "select id, key, status from pgqueue.job")}
    created = [answer.id for _, answer in answers if answer.created]
    assert len(answers) == THREADS * CALLS
    assert all(stored[answer.id]["key"] == key for key, answer in answers)
    assert sorted(created) == sorted(stored)
    assert {job["status"] for job in stored.values()} == {"completed"}
    assert ran == Counter(created)
    assert len(created) > KEYS, "the keys were never free again: this run raced nothing"
    assert value(conn, "select count(*) from pgqueue.job_live") == 0
