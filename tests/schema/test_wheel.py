from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pgqueue import schema
from tests.conftest import MakeDatabase
from tests.schema.catalogue import differences, facts

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
import pgqueue
from pgqueue import schema
for path in (Path(pgqueue.__file__).parent, schema._folder("sql"), schema._folder("migrations")):
    assert "site-packages" in path.parts, path
    assert path.is_relative_to(sys.prefix), path
print(schema.migrate(sys.argv[1]).describe())
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_an_installed_wheel_migrates_with_what_it_carries(
    make_database: MakeDatabase, dsn: str, tmp_path: Path
) -> None:
    # Nothing is fetched: the builder is there already, and what pgqueue needs is lent by this environment through a
    # .pth file. (Its own editable pgqueue is not: .pth files of a lent folder are not read.)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    conninfo = make_database()
    assert run(python, "-c", CODE, conninfo, cwd=tmp_path).startswith("up to date: revision ")
    assert differences(facts(dsn), facts(conninfo)) == []
    assert schema.status(conninfo).current
