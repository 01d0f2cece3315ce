from __future__ import annotations

from pathlib import Path

import pytest

from pgqueue import config
from pgqueue.errors import ConfigError

SECRET = "hunter2"  # noqa: S105
FLAG, OWN, COMMON, FILE = (f"postgresql://{name}/db" for name in ("flag", "own", "common", "file"))


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the machine and no file of the checkout reaches these tests."""
    for name in ("PGQUEUE_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGQUEUE_DATA_DIR", str(tmp_path / "no server"))
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str, name: str = "pgqueue.toml") -> None:
    (folder / name).write_text(text)


def loaded(folder: Path, environ: dict[str, str], flag: str | None = None) -> str | None:
    return config.load(database_url=flag, environ=environ, folder=folder).database_url


def test_each_place_hides_those_below_it(tmp_path: Path) -> None:
    write(tmp_path, f'database_url = "{FILE}"')
    environ = {"PGQUEUE_DATABASE_URL": OWN, "DATABASE_URL": COMMON, "PGHOST": "libpq"}
    assert loaded(tmp_path, environ, FLAG) == FLAG
    assert loaded(tmp_path, environ) == OWN
    del environ["PGQUEUE_DATABASE_URL"]
    assert loaded(tmp_path, environ) == COMMON
    del environ["DATABASE_URL"]
    assert loaded(tmp_path, environ) == ""
    del environ["PGHOST"]
    assert loaded(tmp_path, environ) == FILE


@pytest.mark.parametrize("name", ["PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"])
def test_libpqs_variables_mean_that_libpq_decides(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, {name: "x"}) == ""


def test_what_is_nowhere_set_stays_unset(tmp_path: Path) -> None:
    assert config.load(environ={}, folder=tmp_path) == config.Config(database_url=None, app=None)


def test_one_setting_of_the_file_does_not_hide_another_of_the_environment(tmp_path: Path) -> None:
    write(tmp_path, 'app = "shop:queue"')
    found = config.load(environ={"DATABASE_URL": COMMON}, folder=tmp_path)
    assert (found.database_url, found.app) == (COMMON, "shop:queue")


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_variable_is_not_set(tmp_path: Path, blank: str) -> None:
    assert loaded(tmp_path, {"PGQUEUE_DATABASE_URL": blank, "DATABASE_URL": COMMON}) == COMMON
    blanks = dict.fromkeys(("PGQUEUE_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE", "PGQUEUE_APP"), blank)
    assert config.load(environ=blanks, folder=tmp_path) == config.Config(database_url=None, app=None)


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_flag_is_refused_and_does_not_mean_any_server(blank: str) -> None:
    with pytest.raises(ConfigError, match="the database URL given by flag or argument is blank"):
        config.conninfo(blank)
    with pytest.raises(ConfigError, match="the app given by flag or argument is blank"):
        config.load(app=blank)


def test_a_blank_setting_in_the_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 'database_url = " "')
    with pytest.raises(ConfigError, match=r"the database URL in .*pgqueue\.toml is blank"):
        loaded(tmp_path, {})


def test_the_app_comes_from_flag_environment_and_file(tmp_path: Path) -> None:
    write(tmp_path, 'app = "file"')
    environ = {"PGQUEUE_APP": "env"}
    assert config.load(app="flag", environ=environ, folder=tmp_path).app == "flag"
    assert config.load(environ=environ, folder=tmp_path).app == "env"
    assert config.load(environ={}, folder=tmp_path).app == "file"


def test_settings_may_stand_in_pyproject(tmp_path: Path) -> None:
    write(tmp_path, f'[tool.other]\nx = 1\n[tool.pgqueue]\ndatabase_url = "{FILE}"', "pyproject.toml")
    assert loaded(tmp_path, {}) == FILE
    write(tmp_path, f'database_url = "{OWN}"')
    assert loaded(tmp_path, {}) == OWN


def test_a_pyproject_without_our_table_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, "[project]\nname = 'x'", "pyproject.toml")
    assert loaded(tmp_path, {}) is None


def test_an_unknown_setting_is_refused_and_the_known_are_named(tmp_path: Path) -> None:
    write(tmp_path, 'databse_url = "x"')
    with pytest.raises(ConfigError, match=r"pgqueue\.toml has an unknown setting 'databse_url'; known are app, data"):
        loaded(tmp_path, {})


def test_a_setting_that_is_not_a_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "app = 1")
    with pytest.raises(ConfigError, match="app must be a text"):
        loaded(tmp_path, {})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "database_url = ")
    with pytest.raises(ConfigError, match=r"pgqueue\.toml is not valid TOML"):
        loaded(tmp_path, {})


def test_the_working_folder_and_the_environment_are_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, f'database_url = "{FILE}"')
    assert config.conninfo() == FILE
    monkeypatch.setenv("DATABASE_URL", COMMON)
    assert config.conninfo() == COMMON
    assert config.conninfo(FLAG) == FLAG


def test_without_any_database_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"set DATABASE_URL .* or start the embedded one with `pgqueue pg start`"):
        config.conninfo()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:p@host:5432/db",
        "postgresql+asyncpg://u:p@host:5432/db",
        "postgres://u:p@host:5432/db",
        "postgresql://u:p@host:5432/db",
    ],
)
def test_every_spelling_of_a_postgresql_url_is_understood(url: str) -> None:
    assert config.normalise(url) == "postgresql://u:p@host:5432/db"


@pytest.mark.parametrize("text", ["", "host=h dbname=d", "service=s"])
def test_what_libpq_understands_passes(text: str) -> None:
    assert config.normalise(text) == text


@pytest.mark.parametrize("scheme", ["mysql", "sqlite", "http"])
def test_another_database_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"{scheme}:// is not PostgreSQL"):
        config.normalise(f"{scheme}://u:{SECRET}@host/db")


UNREADABLE = [
    f"host=h password {SECRET}",
    f"postgresql://u:{SECRET}@[host/db",
    f"postgresql://host/db?passwort={SECRET}",
    f"password='{SECRET}",
    f"postgresql://bob:S3cret@{SECRET}@127.0.0.1:1/db",
    f"postgresql://bob:S3cret@{SECRET},x@one:1,two:2/db",
]
READABLE = [
    f"postgresql://user:{SECRET}@host:5433/db",
    f"postgresql+psycopg://user:{SECRET}@host:5433/db",
    f"postgresql://host:5433/db?user=user&password={SECRET}",
    f"host=host port=5433 dbname=db user=user password={SECRET}",
    f"postgresql://user:{SECRET}@one:1,two:2/db",
    f"postgresql://user:a/{SECRET}@host/db",
    f"postgresql://user:{SECRET}/b@host/db",
    f"postgresql:///db?host=/tmp&password={SECRET}",
    f"postgresql://u:{SECRET}@host:port/db",
]


def test_a_url_that_cannot_be_read_is_traced_to_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = f"postgresql://bob:S3cret@{SECRET}@127.0.0.1:1/db"
    remedy = "cannot be read: .* special characters in the password percent-encoded"
    write(tmp_path, f'database_url = "{bad}"')
    with pytest.raises(ConfigError, match=rf"the database URL in .*pgqueue\.toml {remedy}"):
        config.conninfo()
    for variable in ("DATABASE_URL", "PGQUEUE_DATABASE_URL"):
        monkeypatch.setenv(variable, bad)
        with pytest.raises(ConfigError, match=f"the database URL in the environment variable {variable} {remedy}"):
            config.conninfo()
    with pytest.raises(ConfigError, match=f"the database URL given by flag or argument {remedy}"):
        config.conninfo(bad)


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_cannot_be_read_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.normalise(url)
    error: BaseException | None = caught.value
    assert SECRET not in str(error)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("url", [*READABLE, *UNREADABLE])
def test_no_password_is_ever_shown(url: str) -> None:
    try:
        shown = config.describe(url) + repr(config.Config(database_url=url))
    except Exception as error:
        shown = f"{error!r}"
    assert SECRET not in shown


@pytest.mark.parametrize("url", [None, "", *READABLE, *UNREADABLE])
def test_every_url_can_be_described(url: str | None) -> None:
    assert config.describe(url)
    assert repr(config.Config(database_url=url))


def test_a_description_names_host_and_database() -> None:
    assert config.describe(f"postgresql://user:{SECRET}@host:5433/db") == "host:5433/db"
    assert config.describe(f"host=host dbname=db password={SECRET}") == "host/db"
    assert config.describe("postgresql:///db") == "local socket/db"
    assert config.describe("dbname=db") == "local socket/db"
    assert config.describe("service=shop") == "service shop"
    assert config.describe(None) == "none"


def test_a_description_names_what_libpqs_variables_fill_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "host")
    monkeypatch.setenv("PGPORT", "5433")
    monkeypatch.setenv("PGDATABASE", "db")
    assert config.describe("") == "host:5433/db"
    assert config.describe("postgresql://other:1/shop") == "other:1/shop"
