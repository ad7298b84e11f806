"""Searches in a collection of a QdrantClient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing import Filter, Hit, SparseVector, import_extra, matcher
from embedlib_qdrant.collection_options import OVERSAMPLING
from embedlib_qdrant.filters import ALL, ClientConditions, make_filter, search_filtered
from embedlib_qdrant.full_text import require_language
from embedlib_qdrant.points import CONTENT_KEY, SOURCE_ID_KEY, SPARSE_NAME, Mark, read_hit
from embedlib_qdrant.retry import T

_MAX_REQUESTS = 3
"""Of a search whose answer is short, for want of links or because rows change meanwhile."""


class CollectionSearch:
    """The searches of `CollectionSink`, which has the rest."""

    def __init__(self, name: str, collection: str) -> None:
        self.name = name
        self.models = import_extra("qdrant_client.models", "qdrant")
        self.collection = collection

    # Methods of a subclass.

    def connect(self) -> Any:
        """Return the QdrantClient, created at the first call."""
        raise NotImplementedError

    def call(self, action: Callable[[], T]) -> T:
        """Return the result of a request; convert its errors to `SinkError`."""
        raise NotImplementedError

    def settle(self, ids: Sequence[UUID] | None = None) -> None:
        """Wait until written rows can be read; these ids, None: all."""

    def require_stored(self) -> Mark:
        """Return the mark of a collection that holds a load."""
        raise NotImplementedError

    # Shared methods.

    def request(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return what a method of the client returns, by way of `call`."""
        return self.call(lambda: getattr(self.connect(), method)(*arguments, **named))

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the nearest rows."""
        return self.query(vector.tolist(), k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the nearest of the rows that pass a filter."""
        query = vector.tolist()
        return search_filtered(
            lambda limit, wide: self.query(query, limit, wide), k, where, self.name
        )

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows with the greatest sums of products; none of 0."""
        return self.search_second(self.sparse_of(weights), SPARSE_NAME, k, where)

    def search_text(self, question: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows that fit the words of a question best, by BM25."""
        require_language(self.require_stored(), self.name)
        return self.search_second(self.models.TextQuery(text=question), CONTENT_KEY, k, where)

    def search_second(self, query: Any, using: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the best rows by anything but their vectors."""
        return search_filtered(
            lambda limit, wide: self.query(query, limit, wide, using), k, where, self.name
        )

    def sparse_of(self, weights: SparseVector) -> Any:
        """Return the client's object of a sparse vector."""
        return self.models.SparseVector(indices=list(weights), values=list(weights.values()))

    def only_ours(self) -> Any:
        """Return the filter for points that embedlib wrote."""
        field = self.models.PayloadField(key=SOURCE_ID_KEY)
        return self.models.Filter(must_not=[self.models.IsEmptyCondition(is_empty=field)])

    def query(
        self, query: Any, k: int, where: Filter | None, using: str | None = None
    ) -> list[Hit]:
        """Return the best rows; a short answer is asked for again.

        A server leaves out rows that a load removes between its search and its reading of them, and
        does not say so. A ranking by words is short whenever few rows have one of them, so it is
        asked for again only where a row has changed.

        Args:
            query: a vector as a list of floats, or a query of another kind.
            k: how many.
            where: only rows that pass; None: all.
            using: the sparse vector or the field that is asked; None: the vectors are.
        """
        mark = self.require_stored()
        if k == 0:
            return []  # a server refuses such a request
        self.settle()
        passes = self.only_ours()
        if where is not None:
            passes.must = [make_filter(where, ClientConditions(self.models))]
        is_vector = isinstance(query, list)
        similarity = mark.similarity if is_vector else "dot"
        accepts = matcher(ALL if where is None else where)
        hits: list[Hit] = []
        for attempt in range(_MAX_REQUESTS):
            # A graph leads past rows that few others are linked to.
            is_exact = is_vector and attempt > 0 and where is not None
            try:
                answer = self.request(
                    "query_points",
                    self.collection,
                    query=query,
                    using=using or mark.options.vector or None,
                    limit=k,
                    query_filter=passes,
                    search_params=self._search_params(mark, is_exact) if is_vector else None,
                    with_payload=True,
                    with_vectors=False,
                )
            except SinkError as error:
                # What a server in strict mode says: "Exact search disabled!".
                if not is_exact or "exact search" not in str(error).lower():
                    raise
                break
            found = [
                read_hit(each.id, each.score, each.payload, similarity) for each in answer.points
            ]
            # The server reads the payload after it has filtered: a load may change rows in between.
            passed = [hit for hit in found if accepts(hit.metadata)]
            hits = max(passed, hits, key=len)
            is_settled = len(passed) == len(found) and (attempt > 0 or not is_vector)
            if is_settled or len(hits) == k:
                break
        return hits

    def _search_params(self, mark: Mark, is_exact: bool) -> Any:
        if is_exact:
            return self.models.SearchParams(exact=True)
        if mark.options.quantization == "none":
            return None
        again = self.models.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
        return self.models.SearchParams(quantization=again)
