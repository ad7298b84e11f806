"""Sparse vectors beside the others in Postgres, and the two searches as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embedlib.errors import SinkError
from embedlib.testing.check_sink import make_rows, make_vectors
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
