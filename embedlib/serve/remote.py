"""Models that other processes compute: which one answers a request, by the rules of one server.

Only the handler of a route knows what a body asks for, so it runs here up to its model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from embedlib.errors import first_line
from embedlib.serve.app import request_id_of
from embedlib.serve.dialects.dialect import OPENAI, Handle
from embedlib.serve.errors import HTTPError
from embedlib.serve.metrics import Metrics
from embedlib.serve.models.admission import Unread
from embedlib.serve.models.catalog import Catalog, ServedModel, Task, Tasks, still_loading
from embedlib.serve.models.destinations import Destinations
from embedlib.serve.models.sessions import AnyModel
from embedlib.serve.options import ServeOptions
from embedlib.serve.requests.asgi import Request, Response
from embedlib.serve.requests.exchange import Exchange, Shared

AskTasks = Callable[[str], Awaitable[Tasks]]
"""Returns what a model computes, by its name; waits until one of its processes has loaded it."""
HOLD_SECONDS: Final = 20.0
"""So long a request waits for the tasks that its choice depends on; small models load meanwhile."""
WORD_SECONDS: Final = 1.0
"""So long an error waits for the tasks of the models that it could name."""
AnswerPart = Callable[[Handle, Exchange], Awaitable[Response]]
"""Answers a body that is a part of another."""


class ElsewhereError(Exception):
    """The model of a request is found, and another process computes it."""

    def __init__(self, model: str) -> None:
        """Take the name of the model."""
        super().__init__(model)
        self.model = model


class _RemoteModel(ServedModel):
    """What a catalog knows of a model that is not in this process."""

    @property
    def state(self) -> Literal["ready"]:
        """Ready: requests are held until one of its processes is."""
        return "ready"

    def open(self) -> AnyModel:
        """Tell that another process has it.

        Raises:
            ElsewhereError: always.
        """
        raise ElsewhereError(self.name)


class _UnknownTasksError(Exception):
    """The choice of a model needs the tasks of these, if they tell them in time."""

    def __init__(self, names: set[str], seconds: float) -> None:
        super().__init__(*names)
        self.names = names
        self.seconds = seconds


class _RemoteExchange(Exchange, kw_only=True):
    """A request that ends here where its model is found."""

    answer_part: AnswerPart
    asked: set[str] = msgspec.field(default_factory=set)
    """Models that were asked for their tasks, whether they have told them or not."""

    def choose(self, name: str | None, *tasks: Task) -> ServedModel:
        """Return the model of the request.

        Raises:
            HTTPError: there is none, or it depends on one that has not told its tasks.
        """
        models = list(self.shared.catalog)
        named = [model for model in models if model.name == name]
        needed = named or (models if name or len(tasks) > 1 else _up_to(models, *tasks))
        self._need(needed, HOLD_SECONDS)
        unknown = [] if named else [model for model in models if model.tasks is None]
        if unknown and name:
            raise still_loading(unknown[0].name)
        try:
            found = self.shared.catalog.find(name, *tasks)
        except HTTPError as error:
            if error.kind == "wrong_model":  # the message names those that can do it
                self._need(models, WORD_SECONDS)
            raise
        if found in unknown:
            raise still_loading(found.name)
        return found

    def _need(self, models: Iterable[ServedModel], seconds: float) -> None:
        names = {model.name for model in models if model.tasks is None} - self.asked
        if names:
            raise _UnknownTasksError(names, seconds)

    async def run(self, handle: Handle) -> Response:
        """Answer a part of the body by a handler."""
        return await self.answer_part(handle, self)


def _up_to(models: Sequence[ServedModel], task: Task) -> Iterator[ServedModel]:
    """Yield the models that a request without a name depends on: up to the first that is able."""
    for model in models:
        yield model
        if model.tasks is not None and task in model.tasks:
            return


class RemoteModels:
    """The models of a fleet, as a server in front of them needs them."""

    def __init__(self, sources: Mapping[str, str], options: ServeOptions, ask: AskTasks) -> None:
        """Take the models.

        Args:
            sources: what each was made from, by the name that requests use.
            options: the bounds.
            ask: returns the tasks of one; called when a choice needs them, until it returns.
        """
        self._models = {
            name: _RemoteModel(name, _load_nothing, options, source=source)
            for name, source in sources.items()
        }
        catalog = Catalog(self._models.values())
        self._shared = Shared(
            catalog,
            options,
            ThreadPoolExecutor(1, "embedlib-serve-encode"),
            Metrics(catalog, Unread()),
            Destinations({}, options.max_query_texts),
        )
        self._ask = ask
        self._asked: dict[str, asyncio.Task[None]] = {}

    def exchange(self, request: Request, answer_part: AnswerPart) -> Exchange:
        """Return a request for a handler, which raises ElsewhereError where it would compute.

        Args:
            request: its head.
            answer_part: answers a part of the body, of a route that divides it.
        """
        request_id = request_id_of(request)
        given = (request, b"", self._shared, request_id, OPENAI.respond)
        return _RemoteExchange(*given, answer_part=answer_part)

    async def choose(self, handle: Handle, exchange: Exchange) -> Response:
        """Run a handler, when the tasks are known that its choice of a model needs.

        Returns:
            the answer, of a handler that needs no model.

        Raises:
            ElsewhereError: the model is found.
            HTTPError: there is no such model, it cannot do this, or a field is wrong.
        """
        assert isinstance(exchange, _RemoteExchange), "made by `exchange`; a bug in embedlib"
        while True:
            try:
                return await handle(exchange)
            except _UnknownTasksError as unknown:
                names, seconds = unknown.names, unknown.seconds
            await self._learn(names, seconds)
            exchange.asked |= names

    async def _learn(self, names: Iterable[str], seconds: float) -> None:
        """Ask for tasks that are not known yet; requests that come meanwhile wait for them, too."""
        for name in names:
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(self._learn_one(name))
        await asyncio.wait([self._asked[name] for name in names], timeout=seconds)

    async def _learn_one(self, name: str) -> None:
        try:
            self._models[name].tasks = await self._ask(name)
        except Exception as error:  # the next request asks again; this one may be for another model
            logging.getLogger(__name__).warning("%s: %s", name, first_line(error))
        finally:
            del self._asked[name]


def _load_nothing(_tell: object) -> AnyModel:
    raise AssertionError("other processes load it")
