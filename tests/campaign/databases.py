"""Faults of both databases in mid-load: the load goes on by itself, or says why in one line.

Postgres is a real server. At drawn statements it ends the load's connection, the connection is cut,
or the statement fails. Qdrant is the stub that its sink is tested with: drawn requests fail before
or after they were done. The rows at the end must be those of a load that was never disturbed.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from embedlib.indexing.sinks.opening import open_sink
from tests.campaign import points
from tests.campaign.loads import Source, draw_history, expected_rows
from tests.campaign.points import Points, watched
from tests.campaign.stored import collect, difference, of_point, postgres_rows
from tests.campaign.verdict import Judge, Verdict, finding, judge_error

MOST_DOCUMENTS: Final = 100
MOST_STATEMENTS, MOST_REQUESTS = 60, 30
"""Of such a load; a point beyond the last one leaves a load undisturbed."""
TRANSIENT: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED")
LASTING: Final = ("INTERNAL", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNKNOWN", "DATA_LOSS")


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge with a Postgres server and a stub of Qdrant's."""
    with _postgres() as dsn, _stub() as stub:

        def judge(rng: random.Random) -> Verdict:
            return judge_postgres(rng, dsn) if rng.random() < 0.5 else judge_qdrant(rng, stub)

        yield judge


def judge_postgres(rng: random.Random, dsn: str) -> Verdict:
    """Load a table while its connection is ended, cut or failing at drawn statements."""
    import psycopg

    table = f"t_{uuid.uuid4().hex}"
    make_sink = partial(_pg_sink, dsn, table)
    act = rng.choice((_terminate(dsn), _cut, _fail))
    history = draw_history(rng, MOST_DOCUMENTS)
    ends = []
    for source in history:
        numbers = frozenset(rng.sample(range(MOST_STATEMENTS), rng.randrange(1, 4)))
        hook = Points(points.statements, act, numbers)
        ends.append(_load(source, make_sink, hook))
    what = f"Postgres, {act.__name__} at a drawn statement"
    try:
        return _judge_end(
            *(history, ends, what),
            make_sink=make_sink,
            rows=lambda: postgres_rows(dsn, table),
        )
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table}")


def judge_qdrant(rng: random.Random, stub: Any) -> Verdict:
    """Load a collection while drawn requests fail, before or after they were done."""
    name = f"c_{rng.randrange(10**12)}"
    make_sink = partial(_qdrant_sink, stub, name)
    history = draw_history(rng, MOST_DOCUMENTS)
    ends, drawn = [], []
    for source in history:
        faults = _draw_faults(rng)
        stub.begin(faults)
        ends.append(_load(source, make_sink, None))
        drawn += [f"{number}: {code}" for number, (code, _) in faults.items()]
    stub.begin({})

    def rows() -> Iterator[tuple[Any, ...]]:
        records, _ = stub.local.scroll(name, limit=10**6, with_vectors=True)
        for record in records:
            yield of_point(record.id, record.payload, record.vector)

    try:
        return _judge_end(
            *(history, ends, f"Qdrant's stub, request {', '.join(drawn)}"),
            make_sink=make_sink,
            rows=rows,
        )
    finally:
        stub.local.delete_collection(name)


def _load(source: Source, make_sink: Callable[[], Any], hook: Points | None) -> Verdict:
    try:
        if hook is None:
            source.load(make_sink())
        else:
            with watched(hook):
                source.load(make_sink())
    except Exception as error:
        return judge_error(error, "load")
    return Verdict("done", "")


def _judge_end(
    history: list[Source],
    ends: list[Verdict],
    what: str,
    *,
    make_sink: Callable[[], Any],
    rows: Callable[[], Iterator[tuple[Any, ...]]],
) -> Verdict:
    """Judge how the loads ended, load what was refused again, and compare the rows."""
    what = f"{what}: {', '.join(end.kind for end in ends)}"
    for end in ends:
        if end.is_finding:
            return finding(end.kind, f"{what}: {end.what}")
    if any(end.kind != "done" for end in ends):
        for source in history:
            last = _load(source, make_sink, None)
            if last.kind != "done":
                return finding("the next run fails", f"{what}: {last.what}")
    complaint = difference(collect(rows()), expected_rows(history))
    return finding("other rows", f"{what}: {complaint}") if complaint else Verdict("equal", what)


# Postgres.


@contextmanager
def _postgres() -> Iterator[str]:
    """Run a server in a folder of its own, whose path must be short."""
    from embedlib_pgvector.local_server import LocalServer

    with tempfile.TemporaryDirectory(prefix="embedlib-pg-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        server = LocalServer(Path(folder) / "db", "the campaign")
        try:
            yield server.start()
        finally:
            server.stop()


def _pg_sink(dsn: str, table: str) -> Any:
    from embedlib_pgvector.destination import Destination, HnswOptions
    from embedlib_pgvector.sink import PgvectorSink

    destination = Destination(
        name=f"postgresql://campaign/{table}",
        conninfo=dsn,
        password="",
        local_path=None,
        schema=None,
        table=table,
        is_halfvec=None,
        index=HnswOptions(),
    )
    return PgvectorSink(destination, wait=lambda seconds: None)


def _connection(frame: FrameType) -> Any:
    """Return the connection whose cursor, copy or own method a frame runs."""
    it = frame.f_locals["self"]
    return getattr(it, "connection", it)


def _terminate(dsn: str) -> points.Act:
    """Return an act by which the server ends the connection, as an administrator would."""
    import psycopg

    def terminate(frame: FrameType, _argument: Any) -> None:
        process = _connection(frame).info.backend_pid
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (process,))

    return terminate


def _cut(frame: FrameType, _argument: Any) -> None:
    """Cut the connection, as a network does."""
    with (
        suppress(OSError),
        socket.socket(fileno=os.dup(_connection(frame).fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def _fail(frame: FrameType, _argument: Any) -> None:
    """Raise what psycopg raises when a statement fails for a reason that nobody foresaw."""
    import psycopg

    raise psycopg.errors.InternalError_("XX000: cache lookup failed\nCONTEXT: of the campaign")


# Qdrant.


@contextmanager
def _stub() -> Iterator[Any]:
    """Run the stub of the sink's own tests, which fails at chosen requests."""
    import grpc

    from tests.integrations.qdrant.conftest import StubServer

    class FailingStub(StubServer):
        """Its `faults` are the number of a request, the status, and whether it is done first."""

        faults: dict[int, tuple[str, bool]]
        num_requests = 0

        def begin(self, faults: dict[int, tuple[str, bool]]) -> None:
            self.requests.clear()
            self.faults, self.num_requests = faults, 0

        def answer(self, method: str, request: Any, context: Any) -> Any:
            code, is_done_first = self.faults.get(self.num_requests, ("", True))
            self.num_requests += 1
            answer = super().answer(method, request, context) if is_done_first else None
            if code:
                context.abort(grpc.StatusCode[code], "of the campaign\nwith two lines")
            return answer

    stub = FailingStub()
    try:
        yield stub
    finally:
        stub.close()


def _qdrant_sink(stub: Any, name: str) -> Any:
    sink: Any = open_sink(f"qdrant://127.0.0.1:{stub.port}/{name}")
    sink.sleep = lambda seconds: None
    return sink


def _draw_faults(rng: random.Random) -> dict[int, tuple[str, bool]]:
    codes = TRANSIENT if rng.random() < 0.7 else LASTING
    numbers = rng.sample(range(MOST_REQUESTS), rng.randrange(1, 4))
    return {number: (rng.choice(codes), rng.random() < 0.5) for number in numbers}
