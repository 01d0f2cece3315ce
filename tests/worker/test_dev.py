from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pgqueue.embedded import EmbeddedPostgres
from tests.support import Conn, job, value, wait_until

APP = """
from pgqueue import App
app = App()

@app.task(queue="dev")
async def version() -> int:
    return {}
"""


def test_dev_migrates_works_and_starts_anew_when_the_code_changes(conn: Conn, dsn: str, tmp_path: Path) -> None:
    module = tmp_path / "devapp.py"
    module.write_text(APP.format(1))
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "pgqueue", "dev", "-A", "devapp:app", "-d", dsn]
        process = subprocess.Popen(
            command, cwd=tmp_path, stderr=log, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        )
    try:
        enqueue = "select id from pgqueue.enqueue('dev', 'version')"
        first = value(conn, enqueue)
        wait_until(lambda: "the page: " in (tmp_path / "log").read_text(), 40)
        address = (tmp_path / "log").read_text().split("the page: ")[1].split()[0]
        with urllib.request.urlopen(f"{address}jobs", timeout=20) as answer:  # noqa: S310
            assert "version" in answer.read().decode()
        wait_until(lambda: job(conn, first)["status"] == "completed", 40)
        module.write_text(APP.format(2))
        wait_until(lambda: (tmp_path / "log").read_text().count(" serves dev") == 2, 40)
        second = value(conn, enqueue)
        wait_until(lambda: job(conn, second)["status"] == "completed", 40)
        assert (job(conn, first)["result"], job(conn, second)["result"]) == (1, 2)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)  # noqa: S310
    left = "application_name like 'pgqueue%%' and datname = current_database()"
    assert value(conn, f"select count(*) from pg_stat_activity where {left}") == 0


def test_of_two_on_one_data_folder_the_last_to_leave_stops_the_server(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-test-"))  # not tmp_path: as root the server cannot enter that
    folder.chmod(0o755)
    (tmp_path / "devapp.py").write_text(APP.format(1))
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "DATABASE_URL"))}
    environ["PGQUEUE_DATA_DIR"] = str(folder / "pg")
    server = EmbeddedPostgres(folder / "pg")
    started = []
    try:
        for n in range(2):
            with (tmp_path / f"log{n}").open("w") as log:
                command = [sys.executable, "-m", "pgqueue", "dev", "-A", "devapp:app"]
                started.append(subprocess.Popen(command, cwd=tmp_path, stderr=log, env=environ))
            wait_until(lambda n=n: " serves dev" in (tmp_path / f"log{n}").read_text(), 60)  # type: ignore[misc]
        started[0].send_signal(signal.SIGINT)
        assert started[0].wait(40) == 0
        assert server.status().running
        started[1].send_signal(signal.SIGINT)
        assert started[1].wait(40) == 0
        assert not server.status().running
    finally:
        for process in started:
            process.kill()
            process.wait()
        server.stop("immediate")
        shutil.rmtree(folder)
