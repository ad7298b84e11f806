from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pyarrow
import pytest

from embedlib.config import Similarity
from embedlib.errors import InputError
from embedlib.vectors.similarity import normalize, similarity, similarity_pairwise
from embedlib.vectors.sparse import strongest

A = [[3.0, 4.0], [0.0, 0.0]]
B = [[1.0, 0.0], [0.0, -2.0], [3.0, 4.0]]

BY_HAND: dict[Similarity, list[list[float]]] = {
    "cosine": [[0.6, -0.8, 1.0], [0.0, 0.0, 0.0]],
    "dot": [[3.0, -8.0, 25.0], [0.0, 0.0, 0.0]],
    "euclidean": [[-(20**0.5), -(45**0.5), 0.0], [-1.0, -2.0, -5.0]],
    "manhattan": [[-6.0, -9.0, 0.0], [-1.0, -2.0, -7.0]],
}


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_by_hand(kind: Similarity) -> None:
    result = similarity(kind, A, B)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, BY_HAND[kind], atol=1e-6)


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_a_single_vector_is_one_row(kind: Similarity) -> None:
    np.testing.assert_allclose(similarity(kind, A[0], B), BY_HAND[kind][:1], atol=1e-6)
    np.testing.assert_allclose(
        similarity(kind, A, np.array(B[2])), np.array(BY_HAND[kind])[:, 2:], atol=1e-6
    )


def test_a_column_of_vectors_is_rows() -> None:
    cells = np.empty(2, object)  # what a column of pandas or of Arrow is to numpy
    cells[:] = [np.array(row, np.float32) for row in A]
    for column in (cells, pyarrow.array(A), pyarrow.chunked_array([A[:1], A[1:]])):
        np.testing.assert_allclose(similarity("dot", column, B), BY_HAND["dot"])


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_in_pairs(kind: Similarity) -> None:
    result = similarity_pairwise(kind, A, B[:2])
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.diag(BY_HAND[kind]), atol=1e-6)
    assert similarity_pairwise(kind, np.empty((0, 2)), np.empty((0, 2))).shape == (0,)
    of_one = similarity_pairwise(kind, A[0], B)
    np.testing.assert_allclose(of_one, BY_HAND[kind][0], atol=1e-6)
    np.testing.assert_array_equal(similarity_pairwise(kind, B, A[:1]), of_one)
    with pytest.raises(InputError, match="2 and 3 vectors do not form pairs"):
        similarity_pairwise(kind, A, B)


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_no_vectors_give_no_rows(kind: Similarity) -> None:
    assert similarity(kind, np.empty((0, 2)), B).shape == (0, 3)
    nothing: list[Any] = []
    assert similarity(kind, nothing, nothing).shape == (0, 0)
    assert similarity_pairwise(kind, nothing, nothing).shape == (0,)


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_sparse_vectors_compare_as_their_dense_form(kind: Similarity) -> None:
    sparse = [[{i: x for i, x in enumerate(row) if x} for row in side] for side in (A, B)]
    # 7 is a token that one side alone has: it counts for lengths and distances.
    dense = [[[*row, 0.0] for row in A], [[*row, 2.0] for row in B]]
    second = [{**row, 7: 2.0} for row in sparse[1]]
    expected = similarity(kind, *dense)
    np.testing.assert_allclose(similarity(kind, tuple(sparse[0]), second), expected, atol=1e-6)
    nothing: list[Any] = []
    assert similarity(kind, second, nothing).shape == (3, 0)
    assert similarity(kind, nothing, second).shape == (0, 3)


def test_weak_sparse_vectors_have_a_direction() -> None:
    assert similarity("cosine", {3: 1e-6}, {3: 2e-6, 5: 0.0}).tolist() == [[1.0]]


def test_of_equal_weights_the_lower_ids_are_kept() -> None:
    assert strongest({3: 1.0, 5: 1.0, 7: 1.0, 9: 2.0}, 2) == {3: 1.0, 9: 2.0}


def test_one_sparse_side_is_refused() -> None:
    sparse = [{3: 1.0}, {5: 2.0}]
    for first, second in ((sparse, A), (A, sparse), (sparse, np.array(A)), (np.array(A), sparse)):
        with pytest.raises(InputError, match="one side is sparse and the other is not"):
            similarity("dot", first, second)  # type: ignore[arg-type]


def test_normalize() -> None:
    vectors = np.array([[3, 4], [0, 0], [-1e-9, 0]], np.float32)
    result = normalize(vectors)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [[0.6, 0.8], [0, 0], [-1, 0]], atol=1e-7)
    np.testing.assert_allclose(normalize(vectors[0]), [0.6, 0.8], atol=1e-7)
    assert vectors[0, 0] == 3  # its argument is left alone


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["a text"], B, "encode texts first"),
        (A, [[1.0, 2.0, 3.0]], "vectors of 2 and 3 dimensions"),
        ([[1.0, 2.0, 3.0]], A, "vectors of 3 and 2 dimensions"),
        ([A], B, r"of shape \(1, 2, 2\)"),
        (A, None, r"a NoneType of shape \(\); vectors must be \[N, D\] or \[D\]"),
        (5, 5, r"an? int of shape \(\)"),
        ({"a": A}, B, "one side is sparse and the other is not"),
        ([{3: 1.0}, A[0]], [{3: 1.0}], "one side is sparse and the other is not"),
        ([{3: 1.0}, A[0]], B, "encode texts first"),
        ((), B, "vectors of 0 and 2 dimensions"),
    ],
)
@pytest.mark.parametrize("kind", get_args(Similarity))
def test_what_cannot_be_compared(kind: Similarity, first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        similarity(kind, first, second)
    with pytest.raises(InputError, match=message):
        similarity_pairwise(kind, first, second)


@pytest.mark.parametrize("kind", get_args(Similarity))
def test_a_caller_whose_numpy_raises_gets_the_numbers(kind: Similarity) -> None:
    tiny = np.array([[1e-30, 1.0], [1e-30, 1.0]], np.float32)
    with np.errstate(all="raise"):
        for other in (tiny, -tiny):
            assert np.isfinite(similarity(kind, tiny, other)).all()
            assert np.isfinite(similarity_pairwise(kind, tiny, other)).all()
        assert normalize(tiny)[0, 1] == 1
