"""`pgqueue web` as a process: it says where it is, serves, and ends when it is told, whoever is still looking."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.conftest import Run
from tests.conftest import MakeDatabase
from tests.support import Conn, enqueue

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start(dsn: str, conn: Conn) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def one(*options: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", "web", "--port", "0", *options],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "DATABASE_URL": dsn, **environment},
        )  # fmt: skip
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://[^ ]+", line)
        assert found, line
        return process, found[0]

    yield one
    for process in started:
        process.kill()
        process.communicate()


@contextmanager
def asked(url: str, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    conn = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    conn.request("GET", path, headers=headers)
    with conn.getresponse() as response:
        yield response
    conn.close()


def status(url: str, path: str, **headers: str) -> int:
    with asked(url, path, **headers) as response:
        response.read()
        return response.status


def test_it_serves_and_ends_when_told_although_somebody_looks(conn: Conn, start: Start) -> None:
    enqueue(conn, queue="email")
    process, url = start("--environment", "staging")
    with asked(url, "/queues") as answer:
        page = answer.read().decode()
    assert "email" in page
    assert "staging" in page
    assert "read-only" in page
    with asked(url, "/queues", accept="text/event-stream") as stream:
        assert stream.getheader("content-type", "").startswith("text/event-stream")
        assert b"retry" in stream.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM)


def test_off_loopback_only_who_has_a_token_gets_in(start: Start) -> None:
    token = "0123456789abcdef0123"  # noqa: S105
    _, url = start("--host", "0.0.0.0", PGQUEUE_WEB_TOKEN=token)  # noqa: S104
    url = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    assert status(url, "/") == 303
    assert status(url, "/", authorization=f"Bearer {token}") == 200


def test_without_a_token_it_answers_to_no_foreign_name(start: Start) -> None:
    _, url = start("--allow-host", "queue.example")
    assert status(url, "/workers", host="evil.example") == 400
    assert status(url, "/workers", host="queue.example") == 200


def test_a_database_without_the_schema_is_told_before_anything_is_served(make_database: MakeDatabase, run: Run) -> None:
    told = run("web", "-d", make_conninfo(make_database()))
    assert (told.code, "pgqueue migrate" in told.err) == (1, True)
