"""Limits: concurrency, groups, rates, depth, task pauses and circuit breakers."""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
