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


def load_indexed(pg: Any, table: str, options: str = "") -> tuple[Any, Any]:
    """Load 2,000 rows that the server searches by their index; return the sink and the vectors."""
    dsn = psycopg.conninfo.make_conninfo(
        pg.dsn, options=f"-c enable_seqscan=off -c enable_sort=off {options}"
    )
    random = np.random.default_rng(0)
    groups = random.integers(48, size=2000)  # whose rows are near one another
    vectors = random.standard_normal((48, 48), np.float32)[groups]
    vectors += 0.5 * random.standard_normal((2000, 48), np.float32)
    rows = [pg.row(number, group=int(group)) for number, group in enumerate(groups)]
    sink = pg.begun(table, pg.target(dim=48), conninfo=dsn)
    sink.write(rows, vectors)
    sink.finish()
    return sink, vectors, groups


def test_a_filter_costs_an_index_no_neighbours(pg: Any, pg_table: str) -> None:
    sink, vectors, groups = load_indexed(pg, pg_table)
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


def test_a_table_that_an_index_serves_is_searched_to_the_end(pg: Any, pg_table: str) -> None:
    """Of 2,000 rows one passes, far away: the scan of the index ends before it."""
    sink, vectors, _ = load_indexed(pg, pg_table, "-c hnsw.max_scan_tuples=50")
    far = int(np.argmin(vectors @ vectors[0] / np.linalg.norm(vectors, axis=1)))
    where = parse_filter(f"number = {far}")
    assert [hit.metadata["number"] for hit in sink.search_where(vectors[0], 2, where)] == [far]
