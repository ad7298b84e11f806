"""The destinations that a server searches: opened at the start, each with the model of its rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embedlib.checks import is_unicode
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, EmbedlibError, SinkError, shown, typed_line
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.searches.hybrid import Asked, Hybrid
from embedlib.indexing.searches.searching import find_fused, held_state
from embedlib.indexing.sinks.opening import check_is_sink, open_sink
from embedlib.indexing.sinks.protocol import Hit, Sink, UnreachableSinkError
from embedlib.indexing.sinks.replaceable import ReplacedError
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sparse_rows import has_made
from embedlib.indexing.stored_model import describe_other_model, stands_beside
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import Catalog, ServedModel
from embedlib.serve.models.loading import Loader

_CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""A search that takes longer, waiting for others included, is told to come again: a connection that
is lost without a word may take minutes to notice."""


class Destination:
    """One destination. A thread of its own makes every call to it, one after the other."""

    def __init__(self, name: str, sink: str | Sink, max_waiting: int) -> None:
        """Open it.

        Args:
            name: what requests call it.
            sink: a URL, or a `Sink`, which stays open.
            max_waiting: searches that wait for the thread at most; more are told to come again.

        Raises:
            ConfigError: it is neither a URL nor a sink.
            SinkError: it cannot be read, or holds nothing.
        """
        check_is_sink(sink)
        self.name = name
        self.model: ServedModel | None = None
        """The model of its rows; None: it is not loaded yet, or there is none."""
        self.sparse: ServedModel | None = None
        """The model of its rows' sparse vectors; None: they have none, or it is not served."""
        self.error = ""
        """Why it cannot be searched."""
        self._is_own = isinstance(sink, str)
        self._sink = open_sink(sink) if isinstance(sink, str) else sink
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._thread = SinkThread(f"embedlib-serve-search-{name}")
        try:
            self.state = self._thread.submit(held_state, self._sink).result()
        except BaseException:
            self.close()
            raise

    def open(self) -> ServedModel:
        """Return the model of the rows.

        Raises:
            HTTPError: models are loading, or none is that of the rows.
        """
        if self.error:
            raise HTTPError(503, f"{self.name} cannot be searched: {self.error}", "unavailable")
        if self.model is None:
            raise HTTPError(
                503, "the models are loading; come again", "unavailable", retry_seconds=2
            )
        return self.model

    def find_model(self, models: list[ServedModel]) -> None:
        """Choose the model that made the rows; without one, `error` says why."""
        able = [(each, each.session) for each in models if isinstance(each.session, Embedder)]
        embedders = [embedder for _, embedder in able]
        self.state = self._thread.submit(held_state, self._sink, embedders).result()
        for model, embedder in able:
            if self.state.sparse is not None and has_made(embedder, self.state.sparse):
                self.sparse = model
        for model, embedder in able:
            if stands_beside(embedder, self.state):
                self.model = model
                return
        if len(able) == 1:
            self.error = describe_other_model(self.state, self._sink.name, embedders[0], "search")
        else:
            names = ", ".join(model.name for model, _ in able) or "none"
            self.error = (
                f"{self._sink.name} was made by {self.state.model!r} with fingerprint "
                f"{self.state.fingerprint}, which is none of the embedders here ({names}); serve "
                "that model with the same options"
            )

    def second_ranking(self, hybrid: Hybrid) -> Literal["sparse", "text"] | None:
        """Return what a search asks beside the vectors; None: nothing.

        Args:
            hybrid: which one; True: sparse vectors where a model here makes them, else words.

        Raises:
            HTTPError: the rows have no such ranking, or the model of their sparse vectors is not
                here.
        """
        if hybrid is False:
            return None
        stored = self.state.sparse
        if hybrid != "text" and self.sparse is not None:
            return "sparse"
        if hybrid != "sparse" and self.state.full_text is not None:
            return "text"
        if hybrid != "text" and stored is not None:
            what = f"sparse vectors of {stored.model!r}, which is not served; start the server with"
            raise _without(f"{self.name} has {what} that model too")
        ways = {
            "sparse": ("no sparse vectors", "--sparse MODEL"),
            "text": ("no full-text index", "--full-text LANGUAGE"),
            True: ("no sparse vectors and no full-text index", "--full-text LANGUAGE"),
        }
        what, option = ways[hybrid]
        raise _without(
            f"{self.name} has {what}, which hybrid search needs; load it with embedlib index "
            f"{option} and start the server again"
        )

    async def find_rows(
        self,
        vector: NDArray[np.float32],
        asked: Asked | None,
        num_rows: int,
        where: Filter | None,
    ) -> list[Hit]:
        """Return the rows nearest to float32[D] that pass a filter.

        Cancelling the task drops a search that has not begun.

        Args:
            vector: of the question.
            asked: of a second ranking, for hybrid search; None: the vectors alone decide.
            num_rows: how many rows.
            where: None: all rows pass.

        Raises:
            HTTPError: too many searches wait, or the destination does not answer.
            SinkError: it cannot be read, or has no filters.
        """
        if self._num_waiting >= self._max_waiting:
            raise HTTPError.overloaded(
                f"{self._num_waiting:,} searches wait for {self.name}; come again", seconds=1
            )
        self._num_waiting += 1
        try:
            call = self._thread.submit(find_fused, self._sink, vector, asked, num_rows, where)
            return await asyncio.wait_for(asyncio.wrap_future(call), ANSWER_SECONDS)
        except UnreachableSinkError as error:
            raise _come_again(str(error)) from error
        except ReplacedError as error:
            raise HTTPError(503, f"{error}: start the server again", "unavailable") from error
        except asyncio.TimeoutError:
            raise _come_again(
                f"{self.name} has not answered within {ANSWER_SECONDS:g} seconds; is its database "
                "there?"
            ) from None
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """End the thread, and close the destination if it was given by its URL."""
        if self._is_own:
            self._thread.end(self._sink.close)
        self._thread.close(_CLOSE_SECONDS)


def _without(message: str) -> HTTPError:
    return HTTPError(400, message, "missing", param="hybrid")


def _come_again(message: str) -> HTTPError:
    return HTTPError(503, message, "unavailable", retry_seconds=5)


class Destinations:
    """Those of a server, by name."""

    def __init__(self, given: Mapping[str, str | Sink], max_waiting: int) -> None:
        """Open them in their order.

        Raises:
            what `Destination` raises.
        """
        self._by_name: dict[str, Destination] = {}
        self._has_all_models = False
        self._loader = Loader()
        try:
            for name, sink in given.items():
                if not is_unicode(name) or not name:
                    raise ConfigError(f"a destination is called {shown(name)}; give it a name")
                self._by_name[name] = Destination(name, sink, max_waiting)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Destination]:
        """Yield every destination."""
        return iter(self._by_name.values())

    @property
    def failure(self) -> SinkError | None:
        """Why the server must not go on: rows of a model that is not here; None: it may.

        It may go on, too, where a model could not be loaded: the others serve.
        """
        errors = [each.error for each in self if each.error]
        return SinkError(errors[0]) if errors and self._has_all_models else None

    def find(self, name: str | None) -> Destination:
        """Return the destination of a request; the only one needs no name.

        Raises:
            HTTPError: there is none of this name.
        """
        names = ", ".join(self._by_name)
        if not self._by_name:
            raise HTTPError(
                404, "nothing to search here; start the server with --search URL", "not_found"
            )
        if name is None and len(self._by_name) > 1:
            raise HTTPError(422, f"collection is missing; there is {names}", param="collection")
        found = self._by_name.get(name) if name is not None else next(iter(self))
        if found is None:
            raise HTTPError(
                404,
                f"no collection {name!r:.60} here; there is {names}",
                "not_found",
                param="collection",
            )
        return found

    async def find_models(self, catalog: Catalog) -> None:
        """Give each destination its model, when all are loaded."""
        models = list(catalog)
        self._has_all_models = catalog.is_ready
        for destination in self:
            try:
                # A fingerprint is computed from the weights at its first use.
                await self._loader.run(partial(destination.find_model, models))
            except EmbedlibError as error:
                destination.error = str(error)
            except Exception as error:  # of a sink: the next ones get their model all the same
                destination.error = typed_line(error)
                logging.getLogger(__name__).exception("%s", destination.name)

    @property
    def is_loading(self) -> bool:
        """Whether a model is looked for, which may go on after `close`."""
        return self._loader.is_running

    def close(self, load_seconds: float | None = None) -> None:
        """Close all of them.

        Args:
            load_seconds: to wait for the search of a model, which cannot be ended; None: until it
                ends by itself.
        """
        self._loader.join(load_seconds)
        for destination in self:
            destination.close()
