"""MaxSim in blocks against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from embedlib import maxsim
from embedlib.errors import InputError
from embedlib.vectors import maxsim as module
from embedlib.vectors.maxsim import EMPTY_SCORE, maxsim_pairwise


def texts(seed: int, lengths: list[int], dim: int = 8) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((length, dim)).astype(np.float32) for length in lengths]


def naive(queries: list[np.ndarray], documents: list[np.ndarray]) -> np.ndarray:
    return np.array([[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries])


def test_blocks_give_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_ROWS", 10)
    monkeypatch.setattr(module, "DOCUMENT_ROWS", 16)
    queries, documents = texts(1, [3, 1, 12, 5, 5]), texts(2, [1, 40, 7, 9, 2, 16, 3])
    expected = naive(queries, documents)
    np.testing.assert_allclose(maxsim(queries, documents), expected, rtol=1e-5)
    counts = np.array([[len(query)] for query in queries])
    np.testing.assert_allclose(
        maxsim(queries, documents, is_mean=True), expected / counts, rtol=1e-5
    )
    pairs = maxsim_pairwise(queries, documents[:5])
    np.testing.assert_allclose(pairs, expected[:, :5].diagonal(), rtol=1e-5)
    means = maxsim_pairwise(queries, documents[:5], is_mean=True)
    np.testing.assert_allclose(means, expected[:, :5].diagonal() / counts[:, 0], rtol=1e-5)


def test_a_block_has_no_more_rows_than_fit_into_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Spy(module._Block):
        def __init__(self, texts: module.MultiVectors) -> None:
            super().__init__(texts)
            sizes.append(len(self.rows))

    monkeypatch.setattr(module, "_Block", Spy)
    monkeypatch.setattr(module, "QUERY_ROWS", 10)
    monkeypatch.setattr(module, "DOCUMENT_ROWS", 16)
    maxsim(texts(1, [6, 4, 1, 12, 5]), texts(2, [9, 7, 40, 1, 15, 1]))
    assert sizes == [10, 1, 12, 5, 16, 40, 16, 1]
    sizes.clear()
    maxsim(texts(1, [12, 1]), texts(2, [40]))
    assert sizes == [12, 1, 40], "a text with more rows is a block, the first one too"


def test_one_text_and_none() -> None:
    [query], documents = texts(1, [4]), texts(2, [3, 6])
    np.testing.assert_allclose(maxsim(query, documents), naive([query], documents), rtol=1e-5)
    assert maxsim([], documents).shape == (0, 2)
    assert maxsim([query], []).shape == (1, 0)


def test_a_text_without_vectors_comes_last() -> None:
    queries, documents = texts(1, [4, 2]), texts(2, [3, 0, 2])
    scores = maxsim(queries, documents)
    assert (scores[:, 1] == EMPTY_SCORE).all()
    np.testing.assert_allclose(scores[:, ::2], naive(queries, documents[::2]), rtol=1e-5)
    assert maxsim_pairwise(queries[:1], documents[1:2]).tolist() == [EMPTY_SCORE]
    assert maxsim(texts(1, [0]), documents[:1], is_mean=True).tolist() == [[0.0]]


def test_an_array_of_objects_is_a_list() -> None:
    queries, documents = texts(1, [4, 4]), texts(2, [3, 6])
    alike: np.ndarray = np.array(queries, object)  # of three axes
    np.testing.assert_array_equal(maxsim(alike, documents), maxsim(queries, documents))


def test_rows_of_zeros_in_one_array_are_padding() -> None:
    def padded(given: list[np.ndarray]) -> np.ndarray:
        return np.stack([np.pad(text, ((0, 6 - len(text)), (0, 0))) for text in given])

    queries, documents = texts(1, [6, 2]), [-np.abs(text) for text in texts(2, [3, 6, 1])]
    for is_mean in (False, True):
        np.testing.assert_array_equal(
            maxsim(padded(queries), padded(documents), is_mean=is_mean),
            maxsim(queries, documents, is_mean=is_mean),
        )
    np.testing.assert_array_equal(
        maxsim_pairwise(padded(queries), padded(documents[:2])),
        maxsim_pairwise(queries, documents[:2]),
    )


def test_a_tuple_of_tensors_is_a_list_of_them() -> None:
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(text) for text in texts(1, [4, 2])]
    tensors = [text.to(torch.bfloat16).requires_grad_() for text in given]
    expected = maxsim(tensors, tensors)
    np.testing.assert_array_equal(maxsim(tuple(tensors), tuple(tensors)), expected)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (texts(1, [2]), texts(1, [2], dim=9), "8 and 9 dimensions"),
        ([np.ones(3)], texts(1, [2]), r"shape \(3,\); the vectors"),
        ("text", texts(1, [2]), "encode texts first"),
        (7, texts(1, [2]), "encode texts first"),
        ([[[10**400]]], texts(1, [2]), "encode texts first"),
    ],
)
def test_what_cannot_be_compared(first: object, second: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        maxsim(first, second)


def test_pairs_need_partners() -> None:
    with pytest.raises(InputError, match="1 and 2 texts do not form pairs"):
        maxsim_pairwise(texts(1, [2]), texts(1, [2, 2]))
