"""Recurring jobs: their definitions, and the due times that have been dealt with.

Two new tables and nothing else: no lock on anything that is there.
"""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
