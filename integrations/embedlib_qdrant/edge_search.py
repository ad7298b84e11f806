"""Searches in a shard of Qdrant Edge."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.indexing import Filter, Hit, SparseVector, import_extra
from embedlib_qdrant.edge_config import search_params
from embedlib_qdrant.filters import EdgeConditions, make_filter, search_filtered
from embedlib_qdrant.full_text import require_language
from embedlib_qdrant.one_line_errors import one_line_errors
from embedlib_qdrant.points import CONTENT_KEY, OWN_KEY, SPARSE_NAME, Mark, read_hit


class EdgeSearch:
    """The searches of `EdgeSink`, which has the rest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.edge = import_extra("qdrant_edge", "qdrant")

    # Methods of the subclass.

    def open_stored(self) -> Any:
        """Open a shard that holds a load."""
        raise NotImplementedError

    @property
    def stored_mark(self) -> Mark:
        """The mark of the shard that is open."""
        raise NotImplementedError

    # The searches.

    def one_line(self, what: str) -> AbstractContextManager[None]:
        """Convert the engine's errors to `SinkError`."""
        return one_line_errors(self.name, what)

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the nearest rows."""
        return self.search_where(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
        """Return the nearest of the rows that pass a filter."""
        return self._search(self.edge.Query.Nearest(vector.tolist()), k, where)

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows with the greatest sums of products; none of 0."""
        nearest = self.edge.Query.Nearest(self.sparse_of(weights), using=SPARSE_NAME)
        return self._search(nearest, k, where, is_second=True)

    def search_text(self, question: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows that fit the words of a question best, by BM25."""
        self.open_stored()
        require_language(self.stored_mark, self.name)
        query = self.edge.TextQuery(CONTENT_KEY, question)
        return self._search(query, k, where, is_second=True)

    def sparse_of(self, weights: SparseVector) -> Any:
        """Return the engine's object of a sparse vector."""
        return self.edge.SparseVector(indices=list(weights), values=list(weights.values()))

    def _search(
        self, query: Any, k: int, where: Filter | None, *, is_second: bool = False
    ) -> list[Hit]:
        """Return the best rows by their vectors, or by something else in a second ranking."""
        return search_filtered(
            lambda limit, wide: self._query(query, limit, wide, is_second), k, where, self.name
        )

    def _query(self, query: Any, k: int, where: Filter | None, is_second: bool) -> list[Hit]:
        shard, edge = self.open_stored(), self.edge
        mark, passes = self.stored_mark, None
        if where is not None:
            make = EdgeConditions()
            passes = make.group(must=[make_filter(where, make)], must_not=[make.is_empty(OWN_KEY)])

        def ask(params: Any) -> list[Any]:
            request = edge.QueryRequest(
                limit=k,
                query=query,
                filter=passes,
                params=params,
                with_payload=True,
                with_vector=False,
            )
            return list(shard.query(request))

        with self.one_line("cannot be searched"):
            found = ask(None if is_second else search_params(mark))
            if where is not None and len(found) < k and not is_second:
                # A graph leads past rows that few others are linked to.
                found = ask(edge.SearchParams(exact=True))
        similarity = "dot" if is_second else mark.similarity
        return [
            read_hit(hit.id, hit.score, hit.payload, similarity)
            for hit in found
            if OWN_KEY in hit.payload
        ]
