"""Drawn filters over drawn rows: Postgres finds what the reference finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg

from embedlib.indexing import parse_filter
from tests.indexing.filters.drawn import check_filters, drawn_rows, load


def test_drawn_filters(pg: Any, pg_table: str) -> None:
    rows = drawn_rows()
    check_filters(load(pg.sink(pg_table), rows), rows, 100)


def test_a_table_that_an_index_serves_is_searched_to_the_end(pg: Any, pg_table: str) -> None:
    """Of 2,000 rows one passes, far away: the scan of the index ends before it."""
    options = "-c enable_seqscan=off -c hnsw.max_scan_tuples=50"
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options=options)
    rows = pg.rows(0, 2000)
    vectors = pg.vectors(rows)
    sink = pg.begun(pg_table, conninfo=dsn)
    sink.write(rows, vectors)
    sink.finish()
    far = int(np.argmin(vectors @ vectors[0] / np.linalg.norm(vectors, axis=1)))
    where = parse_filter(f"number = {far}")
    assert [hit.metadata["number"] for hit in sink.search_where(vectors[0], 2, where)] == [far]
