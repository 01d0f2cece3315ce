"""Flows: jobs that run after others."""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
