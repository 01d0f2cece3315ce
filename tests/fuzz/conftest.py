from tests.cli.conftest import run
from tests.web.conftest import ports, serve

__all__ = ["ports", "run", "serve"]
