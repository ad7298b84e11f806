"""`embedlib.Search`: questions to the rows of a destination that answer them.

It is long because a class has one file; much of it is signatures and docstrings.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from time import perf_counter
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.errors import ClosedError, ConfigError, SinkError, shown
from embedlib.indexing.embedders import QueryEmbedder, SparseEmbedder, check_embedder
from embedlib.indexing.options import CANDIDATES, SEARCH_ROWS
from embedlib.indexing.searches.hits import SearchOptions, SearchResults, check_rerank, make_answers
from embedlib.indexing.searches.hybrid import Asked, Hybrid, check_hybrid, open_second
from embedlib.indexing.searches.late_ranking import as_ranking, load_ranking, ranking_config
from embedlib.indexing.searches.searching import (
    check_question,
    counted_state,
    find_fused,
    held_state,
    refuse_unknown,
)
from embedlib.indexing.sinks.opening import check_is_sink, open_sink
from embedlib.indexing.sinks.protocol import Hit, Sink, SinkState
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.stored_model import (
    config_beside_sparse,
    describe_other_model,
    open_embedder,
    stands_beside,
)
from embedlib.progress.phases import shown_progress
from embedlib.reranker import Reranker
from embedlib.session.arguments import elements, is_list, is_table, one_config

S = TypeVar("S", bound="Search")
Questions: TypeAlias = Iterable[str]

_SILENT_SECONDS, _CLOSE_SECONDS = 2.0, 30.0
_OPTIONS = ("top_k", "where", "min_score", "rerank", "num_candidates")


class RankingModel(Protocol):
    """What `Search` needs of a reranker; `embedlib.Reranker` is one."""

    def rank(self, query: str, documents: Sequence[str], /) -> Iterable[Mapping[str, Any]]:
        """Return {"corpus_id", "score"} of each document, in any order."""


class Search:
    """A destination with the model that filled it, and perhaps a reranker.

    Any number of threads and tasks may ask; the destination answers them one after the other, on a
    thread of its own. Close it, or use it as a context manager: that ends the thread, and closes
    what it opened.

        with Search("edge:my-docs", reranker="BAAI/bge-reranker-base") as search:
            for hit in search.search("how do I copy a folder?", top_k=3, where='lang = "en"'):
                print(hit.score, hit.text)
    """

    def __init__(
        self,
        destination: str | Sink,
        embedder: QueryEmbedder | str | None = None,
        reranker: RankingModel | Embedder | str | None = None,
        *,
        hybrid: Hybrid = False,
        sparse: SparseEmbedder | str | None = None,
        config: Config | None = None,
    ) -> None:
        """Open the destination and load the models.

        Args:
            destination: what `embedlib.index` loaded: a URL, or a `Sink`, which stays open.
            embedder: the model that made the rows: an `Embedder`, which stays open, an object with
                the members of `QueryEmbedder`, or a name; None: the name stored with the rows.
            reranker: reads the candidates with the question: a `Reranker`, or an `Embedder` of a
                late-interaction model, which stays open; or a name; None: the order is that of the
                vectors.
            hybrid: whether the answer is that of two searches, fused by rank: with vectors, and
                with "sparse" ones or the words of the rows ("text"); the destination was loaded
                with `sparse` or `full_text`. True: with the sparse ones if there are any.
            sparse: the model that made the sparse vectors: an `Embedder`, which stays open, or a
                name; None: the name stored with the rows.
            config: options of an embedder that is given by name, or not at all; what it says of the
                machine and the hub is meant for the other models that are loaded by name, too, and
                `on_truncate` for the reranker.

        Raises:
            ConfigError: an argument has another type.
            SinkError: the destination cannot be read, or another model made its rows.
            EmbedlibError: a model cannot be loaded.
        """
        check_is_sink(destination)
        check_hybrid(hybrid, sparse)
        if embedder is not None and not isinstance(embedder, str):
            check_embedder(embedder, QueryEmbedder)
        ranking = as_ranking(reranker)
        if ranking is not None and not (isinstance(ranking, str) or hasattr(ranking, "rank")):
            raise ConfigError(
                f"reranker = {shown(reranker)}; it must be a Reranker or the name of one, or a "
                "late-interaction Embedder"
            )
        self._owned = ExitStack()
        self._is_closed = False
        self._sink: Sink = open_sink(destination) if isinstance(destination, str) else destination
        self._thread = SinkThread("embedlib-search")
        # A Search that is dropped ends its thread; the end of a program leaves it as it is.
        close_sink = self._sink.close if isinstance(destination, str) else None
        self._end = weakref.finalize(self, self._thread.end, close_sink)
        self._end.atexit = False
        try:
            self._state = self._thread.submit(held_state, self._sink).result()
            self._embedder = self._find_embedder(embedder, one_config(config, {}))
            self._reranker = self._find_reranker(ranking, config)
            self._second = open_second(
                hybrid, sparse, self._sink, self._state, self._embedder, config, self._owned
            )
        except BaseException:
            self.close()
            raise

    @property
    def state(self) -> SinkState:
        """What the destination holds now of the rows that are searched: counts, model, index.

        Postgres reads the whole table to count its rows.

        Raises:
            ClosedError: this was closed.
            ReplacedError: there are no such rows any more.
        """
        return self._thread.submit(counted_state, self._sink, self._state).result()

    @overload
    def search(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        question: str,
        top_k: int = ...,
        *,
        where: str | None = ...,
        min_score: float | None = ...,
        rerank: bool | None = ...,
        num_candidates: int = ...,
    ) -> SearchResults: ...

    @overload
    def search(
        self,
        question: Questions,
        top_k: int = ...,
        *,
        where: str | None = ...,
        min_score: float | None = ...,
        rerank: bool | None = ...,
        num_candidates: int = ...,
    ) -> list[SearchResults]: ...

    def search(
        self,
        question: str | Questions,
        top_k: int = SEARCH_ROWS,
        *,
        where: str | None = None,
        min_score: float | None = None,
        rerank: bool | None = None,
        num_candidates: int = CANDIDATES,
        **unknown: NoReturn,
    ) -> SearchResults | list[SearchResults]:
        """Return the rows that answer a question, best first; of several, a list of answers.

        Args:
            question: embedded on the query lane with the model's prompt for queries. Several are
                a list or tuple, an array, or a column of a table.
            top_k: how many rows, at most.
            where: a filter on the metadata, such as `year >= 2020 and lang = "de"`.
            min_score: leave out rows with a lower score: the reranker's, or the vectors'.
            rerank: None: if there is a reranker; False: not.
            num_candidates: rows that the reranker reads, the nearest ones; as many as `top_k` at
                least.
            **unknown: raises, with what another library's option is called here.

        Raises:
            TypeError: there is no such option.
            ConfigError: an argument is out of range, or the filter is not understood.
            SinkError: the destination cannot be read, or has no filters.
            ClosedError: this Search was closed.
            what the models raise.
        """
        refuse_unknown("Search.search", unknown, _OPTIONS)
        questions = self._check(question)
        options = self._options(top_k, where, min_score, rerank, num_candidates)
        started = perf_counter()
        vectors = _embed(self._embedder, questions)
        asked: Sequence[Asked | None] = [None] * len(questions)
        if self._second is not None:
            asked = self._second(questions)
        embedded = perf_counter()
        found = [self._submit(*pair, options) for pair in zip(vectors, asked, strict=True)]
        rows = [each.result() for each in found]
        searched = perf_counter()
        scores = [
            self._score(text, hits, options) for text, hits in zip(questions, rows, strict=True)
        ]
        instants = (started, embedded, searched, perf_counter())
        results = make_answers(rows, scores, options, instants)
        return results[0] if isinstance(question, str) else results

    @overload
    async def asearch(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        question: str,
        top_k: int = ...,
        *,
        where: str | None = ...,
        min_score: float | None = ...,
        rerank: bool | None = ...,
        num_candidates: int = ...,
    ) -> SearchResults: ...

    @overload
    async def asearch(
        self,
        question: Questions,
        top_k: int = ...,
        *,
        where: str | None = ...,
        min_score: float | None = ...,
        rerank: bool | None = ...,
        num_candidates: int = ...,
    ) -> list[SearchResults]: ...

    async def asearch(
        self,
        question: str | Questions,
        top_k: int = SEARCH_ROWS,
        *,
        where: str | None = None,
        min_score: float | None = None,
        rerank: bool | None = None,
        num_candidates: int = CANDIDATES,
        **unknown: NoReturn,
    ) -> SearchResults | list[SearchResults]:
        """Return what `search` returns without blocking the event loop."""
        refuse_unknown("Search.asearch", unknown, _OPTIONS)
        questions = self._check(question)
        options = self._options(top_k, where, min_score, rerank, num_candidates)
        started = perf_counter()
        if isinstance(self._embedder, Embedder):
            vectors = list(await self._embedder.aencode_query(questions))
        else:
            vectors = await asyncio.to_thread(_embed, self._embedder, questions)
        asked: Sequence[Asked | None] = [None] * len(questions)
        if self._second is not None:
            asked = await asyncio.to_thread(self._second, questions)
        embedded = perf_counter()
        found = [
            asyncio.wrap_future(self._submit(*pair, options))
            for pair in zip(vectors, asked, strict=True)
        ]
        rows = await asyncio.gather(*found)
        searched = perf_counter()
        scores = await asyncio.gather(
            *(self._ascore(*pair, options) for pair in zip(questions, rows, strict=True))
        )
        instants = (started, embedded, searched, perf_counter())
        results = make_answers(rows, scores, options, instants)
        return results[0] if isinstance(question, str) else results

    def close(self) -> None:
        """End the thread, and close what this object opened; may be called twice."""
        self._is_closed = True
        try:
            self._owned.close()
        finally:
            self._close_thread()

    def _close_thread(self) -> None:
        closed = self._end()
        if not self._thread.close(_SILENT_SECONDS):
            logging.getLogger(__name__).warning(
                "%s still answers a call; close waits %g s for it", self._sink.name, _CLOSE_SECONDS
            )
        if self._thread.close(_CLOSE_SECONDS) and closed is not None:
            closed.result()

    def __enter__(self: S) -> S:
        """Return this object; the end of the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self: S) -> S:
        """Return this object; the end of the block closes it."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close it on a thread."""
        await asyncio.to_thread(self.close)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a thread and a connection can be neither pickled nor copied."""
        raise TypeError(
            "a Search cannot be pickled or copied; share it, which any number of threads may, or "
            "open another one in the other process"
        )

    def _find_embedder(self, given: QueryEmbedder | str | None, config: Config) -> QueryEmbedder:
        if given is not None and not isinstance(given, str):
            embedder = given
        else:
            name = given or self._state.model
            sparse = self._state.sparse
            own = config_beside_sparse(config, name, sparse.model if sparse else None)
            opened = open_embedder(name, own, self._state, self._sink.name, shown_progress().say)
            embedder = self._owned.enter_context(opened)
        if not stands_beside(embedder, self._state):
            self._state = self._thread.submit(held_state, self._sink, [embedder]).result()
        if not stands_beside(embedder, self._state):
            raise SinkError(describe_other_model(self._state, self._sink.name, embedder, "search"))
        return embedder

    def _find_reranker(
        self, given: RankingModel | str | None, config: Config | None
    ) -> RankingModel | None:
        if not isinstance(given, str):
            return given
        shown_progress().watch(f"Loading {given}")
        reranker = load_ranking(given, ranking_config(config))
        self._owned.callback(reranker.close)
        return reranker

    def _check(self, question: object) -> list[str]:
        if self._is_closed:
            raise ClosedError("this Search is closed; make another one")
        several = is_list(question) and not is_table(question)
        questions: list[Any] = list(elements(question)) if several else [question]
        for each in questions:
            check_question(each)
        return questions

    def _options(
        self, top_k: object, where: object, min_score: object, rerank: object, candidates: object
    ) -> SearchOptions:
        reranks = check_rerank(rerank, self._reranker is not None)
        return SearchOptions.checked(top_k, where, min_score, reranks, candidates)

    def _submit(
        self, vector: NDArray[np.float32], asked: Asked | None, options: SearchOptions
    ) -> Future[list[Hit]]:
        return self._thread.submit(
            find_fused, self._sink, vector, asked, options.num_rows, options.where
        )

    def _score(self, text: str, hits: list[Hit], options: SearchOptions) -> list[float] | None:
        if options.num_candidates is None or self._reranker is None:
            return None
        return _in_order(self._reranker.rank(text, [hit.text for hit in hits]), len(hits))

    async def _ascore(
        self, text: str, hits: list[Hit], options: SearchOptions
    ) -> list[float] | None:
        if options.num_candidates is None:
            return None
        if not isinstance(self._reranker, Reranker):
            return await asyncio.to_thread(self._score, text, hits, options)
        return _in_order(await self._reranker.arank(text, [hit.text for hit in hits]), len(hits))


def _embed(embedder: QueryEmbedder, questions: list[str]) -> list[NDArray[np.float32]]:
    if isinstance(embedder, Embedder):
        return list(embedder.encode_query(questions))
    return [embedder.encode_query(question) for question in questions]


def _in_order(ranking: Iterable[Mapping[str, Any]], num_documents: int) -> list[float]:
    scores = {entry["corpus_id"]: float(entry["score"]) for entry in ranking}
    if scores.keys() != {*range(num_documents)}:
        raise ConfigError(
            f"the reranker returned scores of the documents {shown([*scores])}; it must return one "
            f"for each of the {num_documents}"
        )
    return [scores[index] for index in range(num_documents)]
