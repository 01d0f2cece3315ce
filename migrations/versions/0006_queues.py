"""Queues that nobody uses are forgotten."""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
