"""Checks of a sink that holds sparse vectors, against brute force in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from embedlib.errors import SinkError
from embedlib.indexing import Hit, SparseModel, SparseVector, Vectors, matcher, parse_filter
from embedlib.indexing.searches.searching import find_fused
from embedlib.indexing.sparse_rows import ARM_ROWS
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors

VOCABULARY = 300
SPARSE = SparseModel(model="check/sparse", fingerprint="folder:4567", dim=VOCABULARY)
BOTH = replace(TARGET, sparse=SPARSE)
NUM_ROWS = 260
WHERE = ("page >= 30 and page < 200", "page in (3, 4, 5)", "source > 'docs/ä 9'", "page = -1")


def draw_weights(num_rows: int) -> list[SparseVector]:
    """Return sparse vectors, one of them without a weight."""
    random = np.random.default_rng(7)
    drawn: list[SparseVector] = [{}]
    for _ in range(num_rows - 1):
        tokens = random.choice(VOCABULARY, random.integers(1, 20), replace=False)
        weights = random.uniform(0.1, 3, len(tokens)).astype(np.float32)
        drawn.append(dict(zip(tokens.tolist(), weights.tolist(), strict=True)))
    return drawn


def dense(weights: SparseVector) -> Any:
    row = np.zeros(VOCABULARY)
    row[list(weights)] = list(weights.values())
    return row


def ranked(scores: dict[UUID, float]) -> list[UUID]:
    return sorted(scores, key=lambda id_: (-scores[id_], id_))


def fused(arms: list[list[UUID]], k: int) -> list[tuple[UUID, float]]:
    """Return ids and scores by the formula, written another way than in the code."""
    ids = {id_ for arm in arms for id_ in arm}
    scores = {id_: sum(1 / (61 + arm.index(id_)) for arm in arms if id_ in arm) for id_ in ids}
    return [(id_, scores[id_]) for id_ in ranked(scores)[:k]]


def check_sparse_sink(make: Callable[[], Any]) -> None:
    """Write rows with both vectors and compare every kind of search with the reference.

    Args:
        make: returns a new sink of the same destination.
    """
    rows, weights = make_rows(NUM_ROWS), draw_weights(NUM_ROWS)
    vectors: Vectors = np.random.default_rng(3).standard_normal((NUM_ROWS, 6)).astype(np.float32)
    sink = make()
    sink.begin(BOTH, lambda line: None)
    sink.write_both(rows[:40], make_vectors(rows[:40]), weights[:40][::-1])
    sink.write_both([], np.empty((0, 6), np.float32), [])
    sink.write_both(rows, vectors, weights)
    sink.finish()
    state = sink.inspect()
    assert (state.num_rows, state.sparse) == (NUM_ROWS, SPARSE)
    assert f"of {NUM_ROWS} points" not in state.index, "so few vectors have no graph in Qdrant"
    bad_vectors: list[dict[int, float]] = [
        *({1: weight} for weight in (float("nan"), -1.0, 0.0, 1e-50, 1e39)),
        {VOCABULARY: 1.0},
        {-1: 1.0},
    ]
    with pytest.raises(SinkError, match="vectors have shape"):
        sink.write_both(rows[:1], vectors[:1, :5], weights[:1])
    with pytest.raises(SinkError, match="there are 0 sparse vectors for 1 rows"):
        sink.write_both(rows[:1], vectors[:1], [])
    for bad in bad_vectors:
        with pytest.raises(SinkError, match="sparse vector 0 of the batch has a"):
            sink.write_both(rows[:1], vectors[:1], [bad])
    sink.close()

    sink = make()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, where in ((11, None), (200, None), *((57, where) for where in WHERE)):
        passes = None if where is None else parse_filter(where)
        accepts = (lambda metadata: True) if passes is None else matcher(passes)
        members = [index for index, row in enumerate(rows) if accepts(row.metadata)]
        products = {rows[i].id: float(dense(weights[i]) @ dense(weights[number])) for i in members}
        products = {id_: product for id_, product in products.items() if product > 0}
        cosines = {rows[i].id: float(unit[i] @ unit[number]) for i in members}
        hits = sink.search_sparse(weights[number], 20, passes)
        _assert_hits(hits, ranked(products)[:20], products)
        found = find_fused(sink, vectors[number], weights[number], 7, passes)
        expected = fused([ranked(cosines)[:ARM_ROWS], ranked(products)[:ARM_ROWS]], 7)
        assert [(hit.id, hit.score) for hit in found] == expected
        assert all(hit.text for hit in found)
    assert sink.search_sparse({VOCABULARY - 1: 1e-3}, 3, None) is not None
    assert sink.search_sparse({}, 3, None) == []
    narrow: Any = {id_: np.float32(weight) for id_, weight in weights[11].items()}
    exact = {id_: float(weight) for id_, weight in narrow.items()}
    assert sink.search_sparse(narrow, 3, None) == sink.search_sparse(exact, 3, None)
    sink.close()
    _check_targets(make)


def _assert_hits(hits: list[Hit], ids: list[UUID], scores: dict[UUID, float]) -> None:
    assert [hit.id for hit in hits] == ids
    assert [hit.score for hit in hits] == pytest.approx([scores[id_] for id_ in ids], rel=1e-5)


def _check_targets(make: Callable[[], Any]) -> None:
    other = replace(SPARSE, fingerprint="folder:89")
    for target, message in (
        (TARGET, "holds sparse vectors of 'check/sparse'; pass the same model"),
        (replace(BOTH, sparse=other), "with fingerprint folder:4567, this is"),
    ):
        sink = make()
        with pytest.raises(SinkError, match=message):
            sink.begin(target, lambda line: None)
        sink.close()
    sink = make()
    sink.begin(replace(TARGET, recreate=True), lambda line: None)
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    assert sink.inspect().sparse is None
    sink.close()
    sink = make()
    with pytest.raises(SinkError, match="holds no sparse vectors; leave sparse out"):
        sink.begin(BOTH, lambda line: None)
    sink.close()
