"""What the operator's page needs: a record of who did what."""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
