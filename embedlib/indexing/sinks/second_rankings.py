"""Sinks that rank their rows in one more way than by vectors, for hybrid search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.protocol import FilteringSink, Hit
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector


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
