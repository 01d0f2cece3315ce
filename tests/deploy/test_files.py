"""The files in deploy/ and the commands in the documents are what they say."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import MakeDatabase
from tests.deploy.commands import wrong_with
from tests.support import Conn, enqueue, rows

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def documents() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, each) for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def containers() -> list[dict[str, Any]]:
    return [
        container
        for _, each in documents()
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    ]


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert wrong_with(["pgqueue", "jobs", "list", "--status", "dead"]) is None
    assert wrong_with(["pgqueue", "jobs", "lst"]) == "there is no command 'lst'"
    assert wrong_with(["pgqueue", "jobs", "list", "--stats"]) == "there is no option --stats"


@pytest.mark.parametrize("container", containers(), ids=lambda each: each["name"])
def test_a_container_runs_a_command_that_exists(container: dict[str, Any]) -> None:
    assert wrong_with(container["command"]) is None
    assert not any(word.startswith(":") for word in container["command"]), "on loopback nobody else can ask"


def test_every_manifest_has_a_kind_and_a_name() -> None:
    assert len(documents()) >= 6
    assert all(each["kind"] and each["metadata"]["name"] for _, each in documents())


def test_the_worker_has_probes_and_longer_to_end_than_to_drain() -> None:
    (worker,) = (
        each for _, each in documents() if each["kind"] == "Deployment" and "worker" in each["metadata"]["name"]
    )
    pod = worker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    drain = int(container["command"][container["command"].index("--drain") + 1])
    assert pod["terminationGracePeriodSeconds"] > drain + 10


def test_the_query_that_scales_answers(conn: Conn) -> None:
    enqueue(conn, queue="default")
    (scaled,) = (each for _, each in documents() if each["kind"] == "ScaledObject")
    (found,) = rows(conn, scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert list(found.values()) == [1.0], "unknown yet: a second each"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_exists(path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    words = shlex.split(unit["Service"]["ExecStart"])
    assert wrong_with(["pgqueue", *words[1:]]) is None
    assert words[0].endswith("/bin/pgqueue")
    if "work" in words:
        drain = int(words[words.index("--drain") + 1])
        assert int(unit["Service"]["TimeoutStopSec"]) > drain + 10
        assert unit["Service"]["Type"] == "notify"


def shown(path: Path) -> list[str]:
    """Every `pgqueue …` between backticks or at the beginning of a line of a block."""
    text = path.read_text()
    found = re.findall(r"`(pgqueue [a-z][^`\n]*)`", text)
    for block in re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE):
        found += re.findall(r"^(?:\$ |  )?(pgqueue [a-z][^#\n]*)", block, re.MULTILINE)
    return [command.strip() for command in found]


DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy" / "pgbouncer.md", ROOT / "README.md"]


@pytest.mark.parametrize("command", sorted({command for path in DOCUMENTS for command in shown(path)}))
def test_a_command_in_the_documents_exists(command: str) -> None:
    for part in re.split(r"&&|;|\|", command):
        words = shlex.split(part.replace("…", ""), comments=True)
        assert wrong_with(words) is None


def test_the_settings_that_the_document_shows_are_accepted(make_database: MakeDatabase) -> None:
    """What docs/operations.md says of PostgreSQL's settings are names that PostgreSQL knows."""
    import psycopg

    names = re.findall(r"^\| `(\w+)` \| ", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    named = [name for name in names if not name.startswith("pgqueue_") and name != "held_snapshot"]
    assert "autovacuum_naptime" in named
    with psycopg.connect(make_database()) as conn:
        for name in named:
            conn.execute("select current_setting(%s)", [name])
