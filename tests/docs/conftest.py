from __future__ import annotations

from tests.worker.conftest import app as app
