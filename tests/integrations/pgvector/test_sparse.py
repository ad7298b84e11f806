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


def test_pgvector_stores_16_000_weights(pg: Any, pg_table: str) -> None:
    sink = pg.sink(pg_table)
    sink.begin(replace(BOTH, sparse=replace(SPARSE, dim=20_000)), lambda line: None)
    rows = make_rows(1)
    with pytest.raises(SinkError, match="has 16001 weights, and pgvector stores up to 16000"):
        sink.write_both(rows, make_vectors(rows), [dict.fromkeys(range(16_001), 1.0)])
    assert sink.inspect().num_rows == 0
    assert np.isfinite(make_vectors(rows)).all()
    sink.close()
