"""Fixtures for the tests of pgvector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def table(pg: Any, pg_table: str) -> Iterator[str]:
    """A name for tables that are dropped at the end, with those beside."""
    name = pg_table[:30]
    yield name
    for sink in pg.sinks:
        sink.close()
    for suffix in ("", "__embedlib_new", "__embedlib_old"):
        pg.fetch("DROP TABLE IF EXISTS {} CASCADE", f"{name}{suffix}")
