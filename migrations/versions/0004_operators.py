"""What operators ask for: metrics, a sample of each queue a minute, workers that can be told to drain."""

from pathlib import Path

from pgqueue.schema import run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(Path(__file__).with_suffix(".sql").read_text())
