"""Servers and folders that a change of model is tried on, and the plan for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.model_change.run import Plan
from tests.campaign.stored import Stored, collect, postgres_rows, read
from tests.integrations.qdrant.real_server import NONE, QdrantServer, find_binary


@contextmanager
def open_plan(kind: str, folder: Path, **numbers: Any) -> Iterator[Plan]:
    """Start what is needed, and yield a plan for it with these numbers."""
    with _server(kind, folder) as place:
        yield Plan(
            url=place.format("docs"),
            fresh=lambda number: place.format(f"fresh{number}"),
            read=_read,
            folder=folder,
            **numbers,
        )


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[str]:
    """Yield what stands before the name of a destination, with {} for the name."""
    if kind == "jsonl":
        yield f"jsonl:{folder}/{{}}.jsonl"
    elif kind == "qdrant":
        binary = find_binary()
        if binary is None:
            raise SystemExit(NONE)
        server = QdrantServer(binary, folder / "server").start()
        try:
            yield f"{server.url}/{{}}"
        finally:
            server.kill()
    else:
        from embedlib_pgvector.local_server import LocalServer

        local = LocalServer(folder / "db", "the run")
        try:
            dsn = local.start().partition("&")[0]
            yield f"{dsn}&table={{}}"
        finally:
            local.stop()


def _read(url: str) -> Stored:
    dsn, _, table = url.partition("&table=")
    return collect(postgres_rows(dsn, table)) if table else read(url)
