"""What a sink may do besides: filters, another ranking for hybrid search, positions of sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.protocol import Hit, Sink
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector


class FilteringSink(Sink, Protocol):
    """A sink that can also search among the rows that pass a filter."""

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the `k` nearest of the rows that `matcher(where)` accepts, best first.

        There are fewer only if fewer pass the filter. What a filter means is said by
        `embedlib.indexing.matcher`, which a sink may also use: it decides of a row's metadata.
        """


class SparseSink(FilteringSink, Protocol):
    """A sink that can also hold a sparse vector of each row, beside the other one.

    It stores `Target.sparse` with the rows and returns it in `SinkState.sparse`.
    """

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Do what `write` does; a row is stored with both of its vectors, or unchanged.

        Args:
            rows: as for `write`.
            vectors: as for `write`.
            weights: of each row token id to weight, finite and above 0.
        """

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the `k` rows with the greatest sum of products, best first; none of 0.

        Args:
            weights: of the query.
            k: how many, at most.
            where: only rows that pass; None: all.
        """


class TextSink(FilteringSink, Protocol):
    """A sink that can also index the words of its rows.

    `begin` prepares the index that `Target.full_text` asks for, also of rows that are stored, and
    `finish` completes it. A load without it leaves the index as it is. `SinkState.full_text` is its
    language.
    """

    def search_text(self, question: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the `k` rows that fit the words of a question best, best first.

        A row is found if it has one of the words; those that the language calls stop words do not
        count, and nothing in a question is an operator.

        Args:
            question: any text.
            k: how many, at most.
            where: only rows that pass; None: all.
        """


class PositionSink(Sink, Protocol):
    """A sink that also keeps how far a source was read; see `embedlib.indexing.resuming`."""

    def load_position(self) -> str | None:
        """Return what `save_position` stored last; None: nothing, or nothing is loaded.

        Works on a new sink object, as `inspect` does.
        """

    def save_position(self, position: str | None) -> None:
        """Store a short line, durably and as a whole, in place of the last one; None: drop it.

        Called after `begin`. It ends with the rows: with `Target.recreate`, `begin` drops it.
        """
