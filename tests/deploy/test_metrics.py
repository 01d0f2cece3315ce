"""Every metric that the dashboard and the alert rules name exists, under the labels that they use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pgqueue import App, Settings, Worker, exporter, probes
from pgqueue import database as db
from tests.support import Conn, claim_one, enqueue, worker

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\b(pgqueue_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def dashboard() -> list[str]:
    told = json.loads((DEPLOY / "grafana" / "pgqueue.json").read_text())
    return [target["expr"] for panel in told["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    told = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


@pytest.fixture
def exposed(dsn: str, conn: Conn) -> Iterator[dict[str, set[str]]]:
    """Every metric there is, with its labels: of the exporter and of a worker."""
    w = worker(conn)
    id = enqueue(conn)
    db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)]))
    # What only queues, tasks and recurring jobs with a limit, a breaker or a history have.
    db.execute(conn, db.set_queue("q", {"max_running": 5, "max_depth": 50}))
    db.execute(conn, db.set_task("t", {}))
    db.execute(conn, db.set_recurring("nightly", {"task": "t", "queue": "q", "every": "1 h"}))
    again = db.execute(conn, db.run_recurring_now("nightly"))
    db.execute(conn, db.complete(w, [(again, claim_one(conn, w).token)]))
    queues = exporter.Queues(lambda: psycopg.connect(dsn, autocommit=True))
    text = exporter.exposition(queues)
    queues.close()
    of_worker = Worker(App(dsn), Settings())
    metrics = probes.worker_metrics(of_worker)
    assert of_worker.observe is not None
    of_worker.observe("t", "completed", 0.1)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text + metrics().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    yield found
    of_worker._beat._memory.close()
    of_worker._beat._file.close()


@pytest.mark.parametrize("expression", [*dashboard(), *(rule["expr"] for rule in rules())])
def test_an_expression_names_metrics_and_labels_that_exist(exposed: dict[str, set[str]], expression: str) -> None:
    named = _NAME.findall(expression)
    assert named, expression
    labels = set().union(*(exposed.get(name, set()) for name, _ in named))
    for name, selectors in named:
        assert name in exposed
        for label in re.findall(r"(\w+)\s*[=!]", selectors):
            assert label in exposed[name], f"{name} has no label {label}"
    for group in _GROUPING.findall(expression):
        for label in filter(None, (part.strip() for part in group.split(","))):
            assert label in labels, f"nothing here has the label {label}"


def test_a_metric_that_does_not_exist_would_be_found(exposed: dict[str, set[str]]) -> None:
    assert "pgqueue_queue_depht" not in exposed
    assert {"pgqueue_slots_busy", "pgqueue_job_wait_seconds_bucket", "pgqueue_jobs_total"} <= exposed.keys()


def test_what_must_be_noticed_has_an_alert() -> None:
    assert {rule["alert"] for rule in rules()} >= {
        "PgqueueOldestJobWaits", "PgqueueJobsDie", "PgqueueNoWorker", "PgqueueHeldSnapshot", "PgqueueDown",
        "PgqueueCircuitOpen", "PgqueueTaskFailsEverywhere", "PgqueueQueueFull", "PgqueueRecurringBroken",
    }  # fmt: skip


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_run_and_the_command_exists(rule: dict[str, Any]) -> None:
    from typer.main import get_command

    from pgqueue import cli

    told = rule["annotations"]
    assert told["summary"]
    words = told["action"].split(";")[0].split()
    assert words[0] == "pgqueue"
    command: Any = get_command(cli.app)
    for word in words[1:]:
        if word.startswith("-") or "commands" not in vars(command):
            break
        command = command.commands[word]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "grafana" / "pgqueue.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
