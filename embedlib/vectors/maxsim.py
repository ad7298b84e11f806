"""MaxSim, the similarity of texts with one vector per token: every pair of two lists, or pairwise.

The rows of many texts lie one behind the other, without padding, and are multiplied in blocks that
fit into the processor's cache. Nothing grows with the number of texts but the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import InputError, a_type, first_line
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.similarity import off_device

QUERY_ROWS: Final = 512
DOCUMENT_ROWS: Final = 1024
"""Rows of a block, at most, unless a single text has more: 2 MB of products. With 8 queries and
1,000 documents of 20 to 300 tokens, half and double of either take up to a third more time."""

EMPTY_SCORE: Final = np.float32(-1e9)
"""Of a document without a vector. Source: `_EMPTY_DOCUMENT_SCORE` of sentence-transformers 6.2,
util/similarity.py."""

MultiVectors = Sequence[Vectors]
"""A list of float32[T, D]: the vectors of the T tokens of each text."""


def maxsim(queries: Any, documents: Any, *, is_mean: bool = False) -> NDArray[np.float32]:
    """Return float32[N, M]: the score of every query with every document.

    The score is the sum over the query's vectors of the largest product with a vector of the
    document.

    Args:
        queries: N arrays float[T, D], T vectors each; or one such array.
        documents: M arrays, or one.
        is_mean: divide by the number of the query's vectors: MeanMaxSim.

    Raises:
        InputError: these are not vectors, or their dimensions differ.

    Source: Khattab and Zaharia, ColBERT (arXiv:2004.12832), equation 3; `maxsim` of
    sentence-transformers 6.2.
    """
    first, second = _comparable(queries, documents)
    scores = np.empty((len(first), len(second)), np.float32)
    query_blocks = [(block, _Block(first[block])) for block in _blocks(first, QUERY_ROWS)]
    for columns in _blocks(second, DOCUMENT_ROWS):
        block = _Block(second[columns])
        for rows, query_block in query_blocks:
            scores[rows, columns] = _score_block(query_block, block)
    return scores / _counts(first)[:, None] if is_mean else scores


def maxsim_pairwise(queries: Any, documents: Any, *, is_mean: bool = False) -> NDArray[np.float32]:
    """Return float32[N]: the score of query n with document n; otherwise as `maxsim`.

    Raises:
        InputError: there are not as many queries as documents, or as in `maxsim`.
    """
    first, second = _comparable(queries, documents)
    if len(first) != len(second):
        raise InputError(
            f"{len(first)} and {len(second)} texts do not form pairs; maxsim() compares each with "
            "all"
        )
    scores = np.array(
        [
            (document @ query.T).max(axis=0).sum() if len(document) else EMPTY_SCORE
            for query, document in zip(first, second, strict=True)
        ],
        np.float32,
    )
    return scores / _counts(first) if is_mean else scores


class _Block:
    """Texts with their vectors one behind the other."""

    def __init__(self, texts: MultiVectors) -> None:
        self.rows = np.concatenate(texts)
        self.ends = np.cumsum([0, *map(len, texts)])


def _score_block(queries: _Block, documents: _Block) -> NDArray[np.float32]:
    """Return float32[N, M] of the texts of two blocks."""
    products = documents.rows @ queries.rows.T
    best = np.full((len(documents.ends) - 1, products.shape[1]), EMPTY_SCORE, np.float32)
    for row, (start, end) in zip(best, pairwise(documents.ends), strict=True):
        if start < end:
            np.max(products[start:end], axis=0, out=row)
    scores = np.zeros((len(queries.ends) - 1, len(best)), np.float32)
    for row, (start, end) in zip(scores, pairwise(queries.ends), strict=True):
        np.sum(best[:, start:end], axis=1, out=row)
    scores[:, np.diff(documents.ends) == 0] = EMPTY_SCORE
    return scores


def _blocks(texts: MultiVectors, max_rows: int) -> list[slice]:
    """Divide texts into blocks of at most so many vectors; a text with more is a block."""
    blocks = []
    start = num_rows = 0
    for index, text in enumerate(texts):
        if num_rows + len(text) > max_rows and index > start:
            blocks.append(slice(start, index))
            start, num_rows = index, 0
        num_rows += len(text)
    if start < len(texts):
        blocks.append(slice(start, len(texts)))
    return blocks


def _counts(texts: MultiVectors) -> NDArray[np.float32]:
    return np.array([max(len(text), 1) for text in texts], np.float32)


def _comparable(first: Any, second: Any) -> tuple[MultiVectors, MultiVectors]:
    """Return both as lists of float32[T, D] with one D."""
    a, b = _texts(first), _texts(second)
    widths = sorted({text.shape[1] for text in (*a, *b)})
    if len(widths) > 1:
        raise InputError(
            f"vectors of {' and '.join(map(str, widths))} dimensions cannot be compared; all must "
            "be of the same model"
        )
    return a, b


def _texts(vectors: Any) -> MultiVectors:
    """Return a list of float32[T, D]; a single array of two axes is one text.

    In one of three, rows of zeros are padding, as in `_zero_row_mask` of sentence-transformers 6.2.
    """
    given = off_device(vectors)
    if isinstance(given, np.ndarray) and given.dtype != object:
        if given.ndim == 2:
            given = [given]
        elif given.ndim == 3:
            given = [text[text.any(axis=1)] for text in given]
    try:
        texts = [np.asarray(text, np.float32) for text in given]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"maxsim compares lists of vectors; encode texts first ({first_line(error)})"
        ) from error
    for index, text in enumerate(texts):
        if text.ndim != 2:
            raise InputError(
                f"{a_type(vectors)} holds at {index} an array of shape {text.shape}; the vectors "
                "of a text must be [T, D]"
            )
    return texts
