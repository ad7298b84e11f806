"""Drawn filters over drawn rows: Postgres finds what the reference finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from embedlib.indexing import Vectors, parse_filter
from tests.indexing.filters.drawn import check_filters, drawn_rows, load


def test_drawn_filters(pg: Any, pg_table: str) -> None:
    rows = drawn_rows()
    check_filters(load(pg.sink(pg_table), rows), rows, 100)


@pytest.fixture(scope="module")
def indexed(pg_session_server: Any) -> Iterator[tuple[str, Vectors, NDArray[np.int64]]]:
    """A table of 2,000 rows with an index, their vectors, and groups of near ones."""
    random = np.random.default_rng(0)
    groups = random.integers(48, size=2000)
    vectors = random.standard_normal((48, 48), np.float32)[groups]
    vectors += 0.5 * random.standard_normal((2000, 48), np.float32)
    pg, table = pg_session_server, f"t_{uuid4().hex}"
    sink = pg.begun(table, pg.target(dim=48))
    sink.write([pg.row(number, group=int(group)) for number, group in enumerate(groups)], vectors)
    sink.finish()
    sink.close()
    yield table, vectors, groups
    pg.fetch("DROP TABLE {} CASCADE", table)


def by_index(pg: Any, table: str, options: str = "") -> Any:
    """A sink for which the server searches a table by its index."""
    options = f"-c enable_seqscan=off -c enable_sort=off {options}"
    return pg.sink(table, conninfo=psycopg.conninfo.make_conninfo(pg.dsn, options=options))


def test_a_filter_costs_an_index_no_neighbours(pg: Any, indexed: Any) -> None:
    table, vectors, groups = indexed
    sink = by_index(pg, table)
    num_found = 0
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        near = np.argsort(
            -(vectors[members] @ vectors[3]) / np.linalg.norm(vectors[members], axis=1)
        )
        hits = sink.search_where(vectors[3], 5, parse_filter(f"group = {group}"))
        found = [hit.metadata["number"] for hit in hits]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        num_found += len({*found} & {*members[near[:5]].tolist()})
    assert num_found >= 238  # of 240; with pgvector's own settings in strict order 230


def test_a_table_that_an_index_serves_is_searched_to_the_end(pg: Any, indexed: Any) -> None:
    """Of 2,000 rows one passes, far away: the scan of the index ends before it."""
    table, vectors, _ = indexed
    sink = by_index(pg, table, "-c hnsw.max_scan_tuples=50")
    far = int(np.argmin(vectors @ vectors[0] / np.linalg.norm(vectors, axis=1)))
    where = parse_filter(f"number = {far}")
    assert [hit.metadata["number"] for hit in sink.search_where(vectors[0], 2, where)] == [far]
