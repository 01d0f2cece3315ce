"""The first schema.

0001_initial.sql is frozen: it is sql/tables.sql as it was then. Later changes are later revisions.
"""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
