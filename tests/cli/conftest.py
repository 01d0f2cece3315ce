from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pgqueue import cli
from tests.support import Conn


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def run(dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process, on an empty queue: run("jobs", "list") → exit code, output, complaints."""
    monkeypatch.setenv("DATABASE_URL", dsn)

    def invoke(*arguments: object, stdin: str = "") -> Answer:
        monkeypatch.setattr("sys.argv", ["pgqueue", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, captured.out, captured.err)

    return invoke
