"""What a server answers about pgvector, on a double of a connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from embedlib.errors import SinkError
from embedlib_pgvector.extension import ensure_extension


class Server:
    """A connection to a database without the extension, which the server may offer."""

    def __init__(self, version: int, *, is_offered: bool = True) -> None:
        self.info = SimpleNamespace(
            server_version=version, parameter_status=lambda _: "13.9", dbname="db"
        )
        self.statements: list[str] = []
        self._is_offered = is_offered
        self._row: tuple[int] | None = None

    def execute(self, query: str) -> Server:
        self.statements.append(query)
        if query.startswith("CREATE"):
            raise psycopg.errors.UniqueViolation("pg_extension_name_index")
        self._row = (1,) if "pg_available_extensions" in query and self._is_offered else None
        return self

    def fetchone(self) -> tuple[int] | None:
        return self._row


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(130009), "the server is Postgres 13.9; 14 or newer is needed"),
        (Server(170002, is_offered=False), "apt install postgresql-17-pgvector, or .*:pg17"),
    ],
)
def test_a_server_without_what_is_needed_is_one_line(server: Any, message: str) -> None:
    with pytest.raises(SinkError, match=f"^docs: .*{message}"):
        ensure_extension(server, "docs")


def test_an_extension_that_another_writer_makes_at_that_moment_is_there() -> None:
    server: Any = Server(140000)
    ensure_extension(server, "docs")
    assert "search_path" in server.statements[-1]
