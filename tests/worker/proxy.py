"""A TCP proxy in front of PostgreSQL that can break the network in the ways in which networks break.

    with Proxy(dsn) as proxy:
        worker = start(proxy.conninfo)
        proxy.hang("pgqueue listen")     # only connections with this application_name
        proxy.heal()

Every fault is for all connections, or for those whose startup message names the given application_name.

    hang    what either side sends is swallowed, and neither is told: not even when the other one leaves
    drop    connections are closed, new ones too
    reset   connections that are open now end with a TCP reset; new ones pass
    delay   everything is late
    heal    new connections pass. Those that hung have lost bytes and hang for ever: the network has forgotten them
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_BACKEND_KEY, _POOLER_PID = b"K\0\0\0\x0c", 12345
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


@dataclass(frozen=True)
class _Fault:
    kind: Literal["pass", "hang", "drop", "delay"]
    seconds: float = 0.0


_PASS = _Fault("pass")


class _Connection:
    def __init__(self, name: str, client: socket.socket, server: socket.socket | None) -> None:
        self.name = name
        self.hangs = False
        self._ends = [end for end in (client, server) if end is not None]
        self._lock = threading.Lock()

    def close(self, *, reset: bool = False) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                if reset and end.family == socket.AF_INET:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                else:
                    end.shutdown(socket.SHUT_RDWR)
            # A thread that sits in recv() holds on to its socket; shutting down the reading side wakes it.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()


class Proxy:
    """Listens on a port of 127.0.0.1 and passes on to the server that `conninfo` names by host and port or socket."""

    def __init__(self, conninfo: str, *, pooler: bool = False) -> None:
        """`pooler`: like PgBouncer, give clients process numbers that are not those of the server."""
        self._pooler = pooler
        given = conninfo_to_dict(conninfo)
        host, port = str(given.get("host") or "/var/run/postgresql"), int(str(given.get("port") or 5432))
        self._target: tuple[str, int] | str = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.conninfo = make_conninfo(conninfo, host="127.0.0.1", port=self._door.getsockname()[1])
        self._faults: dict[str | None, _Fault] = {}
        self._open: set[_Connection] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Proxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for connection in self._matching(None):
            connection.close()
        for thread in self._threads:
            thread.join(5)

    # -- faults

    def hang(self, name: str | None = None) -> None:
        self._set(name, _Fault("hang"))
        for connection in self._matching(name):
            connection.hangs = True

    def drop(self, name: str | None = None) -> None:
        self._set(name, _Fault("drop"))
        self._end(name)

    def reset(self, name: str | None = None) -> int:
        """How many there were."""
        return self._end(name, reset=True)

    def delay(self, seconds: float, name: str | None = None) -> None:
        self._set(name, _Fault("delay", seconds))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def passing(self, name: str) -> int:
        """How many connections of this name are open and do not hang."""
        return sum(not connection.hangs for connection in self._matching(name))

    # -- inside

    def _set(self, name: str | None, fault: _Fault) -> None:
        with self._lock:
            self._faults[name] = fault

    def _fault(self, name: str) -> _Fault:
        with self._lock:
            return self._faults.get(name) or self._faults.get(None) or _PASS

    def _matching(self, name: str | None) -> list[_Connection]:
        with self._lock:
            return [connection for connection in self._open if name in (None, connection.name)]

    def _end(self, name: str | None, *, reset: bool = False) -> int:
        matching = self._matching(name)
        for connection in matching:
            connection.close(reset=reset)
        return len(matching)

    def _spawn(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(10)
            name, startup = _read_startup(client)
            client.settimeout(None)
            fault = self._fault(name)
            if fault.kind == "drop":
                client.close()
                return
            if fault.kind != "hang":
                server = self._reach()
                server.sendall(startup)
        except OSError:  # also one who leaves before saying anything
            client.close()
            if server is not None:
                server.close()
            return
        connection = _Connection(name, client, server)
        connection.hangs = server is None
        with self._lock:
            self._open.add(connection)
        fault = self._fault(name)  # it may have begun since
        connection.hangs = connection.hangs or fault.kind == "hang"
        if self._stopping.is_set() or fault.kind == "drop":
            connection.close()
        if server is not None:
            self._spawn(self._pass_on, connection, server, client)
        self._pass_on(connection, client, server)

    def _reach(self) -> socket.socket:
        if isinstance(self._target, str):
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                server.close()
                raise
            return server
        server = socket.create_connection(self._target, 10)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _pass_on(self, connection: _Connection, source: socket.socket, target: socket.socket | None) -> None:
        try:
            while data := source.recv(65536):
                if self._pooler and (at := data.find(_BACKEND_KEY)) >= 0:
                    at += len(_BACKEND_KEY)
                    data = data[:at] + struct.pack("!I", _POOLER_PID) + data[at + 4 :]
                fault = self._fault(connection.name)
                if fault.kind == "delay":
                    self._stopping.wait(fault.seconds)
                if not connection.hangs and target is not None:
                    target.sendall(data)
        except OSError:
            pass  # closed, by them or by us
        if connection.hangs and not self._stopping.is_set():
            return  # who has left does not get word across
        connection.close()
        with self._lock:
            self._open.discard(connection)


def _read_startup(client: socket.socket) -> tuple[str, bytes]:
    """The application_name (empty for a request to cancel, which has none), and the message as it came."""
    while True:
        head = _read(client, 8)
        length, code = struct.unpack("!II", head)
        if code in (_SSL, _GSS):
            client.sendall(b"N")
            continue
        message = head + _read(client, length - 8)
        if code == _CANCEL:
            return "", message
        words = message[8:].split(b"\0")
        settings = dict(zip(words[::2], words[1::2], strict=False))
        return settings.get(b"application_name", b"").decode(), message


def _read(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        if not part:
            raise ConnectionResetError("left before it said who it is")
        data += part
    return data
