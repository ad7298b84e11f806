"""Sparse vectors beside the others in Postgres, and the two searches as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embedlib.errors import SinkError
from embedlib.testing.check_sink import make_rows, make_vectors
from embedlib_pgvector.full_text import search_text
from embedlib_pgvector.queries import TableMovedError, search_sparse
from tests.indexing.sparse_checks import BOTH, SPARSE, check_sparse_sink


def test_sparse_vectors(pg: Any, pg_table: str) -> None:
    check_sparse_sink(lambda: pg.sink(pg_table))


def test_columns_of_the_user_may_have_any_name(pg: Any, pg_table: str) -> None:
    sink = pg.sink(pg_table)
    sink.begin(BOTH, lambda line: None)
    rows = make_rows(3)
    sink.write_both(rows, make_vectors(rows), [{1: 1.0}, {1: 3.0}, {1: 2.0}])
    for name in ("place", "distance", "found"):
        pg.fetch(f"ALTER TABLE {{}} ADD COLUMN {name} text", pg_table)
    hits = sink.search_sparse({1: 1.0}, 3, None)
    assert [(hit.id, hit.score) for hit in hits] == [
        (rows[1].id, 3.0),
        (rows[2].id, 2.0),
        (rows[0].id, 1.0),
    ]
    # Of equal ones the order is that of the ids; what no row can have finds nothing.
    sink.write_both(rows, make_vectors(rows), [{1: 1.0}] * 3)
    hits = sink.search_sparse({SPARSE.dim: 9.0, 2: 1.0, 1: 1.0}, 3, None)
    assert [hit.id for hit in hits] == sorted(row.id for row in rows)
    sink.close()


def test_rows_of_partitions_are_found(pg: Any, pg_table: str) -> None:
    """Who divides a large table copies the comment that says what it holds."""
    sink = pg.sink(pg_table)
    sink.begin(replace(BOTH, full_text="simple"), lambda line: None)
    rows = make_rows(3)
    sink.write_both(rows, make_vectors(rows), [{1: 1.0}, {1: 3.0}, {1: 2.0}])
    sink.close()
    whole = f"{pg_table}_whole"
    pg.fetch("ALTER TABLE {} RENAME TO {}", pg_table, whole)
    pg.fetch(
        "CREATE TABLE {} (LIKE {} INCLUDING COMMENTS INCLUDING GENERATED)"
        " PARTITION BY HASH (langchain_id)",
        *(pg_table, whole),
    )
    pg.fetch(
        "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        *(pg_table, whole),
    )
    assert {hit.id for hit in sink.search(make_vectors(rows)[0], 3)} == {row.id for row in rows}
    assert sink.search_sparse({1: 1.0}, 1, None)[0].id == rows[1].id
    assert len(sink.search_text(rows[0].text, 3, None)) > 0
    assert {key.id for key in sink.scan()} == {row.id for row in rows}


def test_rows_of_a_table_that_took_the_name_meanwhile_are_refused(pg: Any, pg_table: str) -> None:
    sink = pg.sink(pg_table)
    sink.begin(replace(BOTH, full_text="simple"), lambda line: None)
    rows = make_rows(1)
    sink.write_both(rows, make_vectors(rows), [{1: 1.0}])
    meant = replace(sink._begun, oid=sink._begun.oid + 1)
    with pg.connect() as connection:
        with pytest.raises(TableMovedError):
            search_sparse(connection, meant, {1: 1.0}, 1, None)
        with pytest.raises(TableMovedError):
            search_text(connection, meant, rows[0].text, 1, None)
    sink.close()


def test_pgvector_stores_16_000_weights(pg: Any, pg_table: str) -> None:
    sink = pg.sink(pg_table)
    sink.begin(replace(BOTH, sparse=replace(SPARSE, dim=20_000)), lambda line: None)
    rows = make_rows(1)
    with pytest.raises(SinkError, match="has 16001 weights, and pgvector stores up to 16000"):
        sink.write_both(rows, make_vectors(rows), [dict.fromkeys(range(16_001), 1.0)])
    assert sink.inspect().num_rows == 0
    assert np.isfinite(make_vectors(rows)).all()
    sink.close()
