"""The models of a server: found by name, loaded in the background, closed at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from time import monotonic, time
from typing import Final, Literal, TypeVar, get_args

from embedlib.classifier import Classifier
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import CallerEngine, why_lost
from embedlib.errors import EmbedlibError, typed_line
from embedlib.models.opening import OpenedModel
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.token_heads import has_token_head
from embedlib.reranker import Reranker
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.admission import Admission
from embedlib.serve.models.estimate import Rate, TokenEstimate
from embedlib.serve.models.gathering import Gathering
from embedlib.serve.models.loading import Loader
from embedlib.serve.models.sessions import (
    AnyModel,
    EmbeddingForms,
    computed,
    engine_of,
    has_sparse_head,
    pipeline_of,
)
from embedlib.serve.options import ServeOptions

M = TypeVar("M", Embedder, Reranker, Classifier)

Task = Literal["embed", "embed_sparse", "embed_multi_vector", "rerank", "classify"]
Tasks = tuple[Task, ...]
"""What one model computes; the first one is its own, and a head beside it adds another."""
ALL_TASKS: Final[Tasks] = get_args(Task)
ROUTE_OF: Final[Mapping[Task, str]] = {
    "embed": "/v1/embeddings",
    "embed_sparse": "/embed_sparse",
    "embed_multi_vector": "/v1/multi-vector",
    "rerank": "/rerank",
    "classify": "/classify",
}
"""The route that errors name for a task."""
LoadModel = Callable[[Callable[[Tasks], None]], AnyModel]
"""Loads a model, and tells before what its files say that it computes."""

FEEDERS = 4
"""Threads per model that compute a lone query, or tokenize long ones."""


@dataclass(eq=False)
class ServedModel:
    """One model: loading, ready, or failed with a reason."""

    name: str
    """What requests call it."""
    load: LoadModel
    options: ServeOptions
    source: str = ""
    """The folder or hub name it was made from."""
    session: AnyModel | None = None
    error: str = ""
    """Why it could not be loaded."""
    created: int = field(default_factory=lambda: int(time()))
    admission: Admission = field(init=False)
    gathering: Gathering = field(default_factory=Gathering)
    forms: EmbeddingForms = field(default_factory=EmbeddingForms)
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    feeders: ThreadPoolExecutor = field(init=False)
    token_calls: ThreadPoolExecutor = field(init=False)
    """Prepares calls for outputs of tokens; the first one waits here for the second engine."""
    tasks: Tasks | None = field(init=False, default=None)
    """What it computes; None while its files were not read, or if they cannot be."""
    _rate: Rate = field(init=False, default_factory=Rate)
    is_closed: bool = field(init=False, default=False)
    answered_at: float = 0.0
    """When the engine last answered, on the monotonic clock; 0: never."""

    def __post_init__(self) -> None:
        """Open the door of the model, and its threads."""
        self.admission = Admission(self.options, self.tokens_per_second)
        self.feeders = ThreadPoolExecutor(FEEDERS, f"embedlib-serve-{self.name}")
        self.token_calls = ThreadPoolExecutor(1, f"embedlib-serve-tokens-{self.name}")

    @property
    def task(self) -> Task | None:
        """The first of `tasks`; None: they are not known."""
        return None if self.tasks is None else self.tasks[0]

    def make(self) -> None:
        """Load it; blocks.

        Raises:
            what `load` raises.
        """

        def expect(tasks: Tasks) -> None:
            self.tasks = tasks

        session = self.load(expect)
        self.tasks = _tasks_of(session)  # first: requests find it by them
        self.session = session
        if self.is_closed:
            session.close()

    def close(self) -> None:
        """Close it; one that is loading, by another thread, closes when it is loaded."""
        self.is_closed = True
        if self.session is not None:
            self.session.close()

    @cached_property
    def computes_on_callers(self) -> bool:
        """Whether its engine computes a lone query on the thread that asks; it is loaded."""
        assert self.session is not None, "asked of a model that computes"
        return isinstance(engine_of(self.session), CallerEngine)

    @property
    def state(self) -> Literal["loading", "ready", "failed"]:
        """How far it is."""
        return "failed" if self.error else "loading" if self.session is None else "ready"

    @property
    def lost(self) -> str | None:
        """Why it will not compute anything more before the process is restarted; None: it may."""
        if self.session is None:
            return None
        failure = pipeline_of(self.session).failure
        stopped = None if failure is None else f"{failure}; restart the process"
        return why_lost(engine_of(self.session)) or stopped

    def tokens_per_second(self) -> float:
        """Return the rate at which it has computed tokens of late; 0: not known."""
        return 0.0 if self.session is None else self._rate.at(*computed(self.session))

    def note_answer(self) -> None:
        """Record that the engine has just answered."""
        self.answered_at = monotonic()

    def open(self) -> AnyModel:
        """Return the loaded model.

        Raises:
            HTTPError: it is loading, or could not be loaded.
        """
        if self.session is None:
            if self.error:
                raise HTTPError(503, f"{self.name} could not be loaded: {self.error}", "not_loaded")
            raise still_loading(self.name)
        return self.session

    def open_as(self, kind: type[M]) -> M:
        """Return what `open` does of a model that was found by a task of this kind."""
        session = self.open()
        assert isinstance(session, kind), "the catalog finds models by their task"
        return session


def still_loading(name: str) -> HTTPError:
    """Return the error of a request for a model that is loading."""
    return HTTPError(503, f"{name} is loading; come again", "unavailable", retry_seconds=2)


class Catalog:
    """The models by name."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        """Keep the models in the order of preference for a task."""
        self._models = {model.name: model for model in models}
        self._loader = Loader()

    def __iter__(self) -> Iterator[ServedModel]:
        """Yield every model."""
        return iter(self._models.values())

    def find(self, name: str | None, *tasks: Task) -> ServedModel:
        """Return the model of a request.

        A server with one model for the task takes any name, since examples of other servers send
        a dummy.

        Args:
            name: of the request; None: it names none.
            tasks: what the route computes; of several, the first that has a model.

        Raises:
            HTTPError: there is no such model, or it cannot do this.
        """
        named = self._models.get(name or "")
        if named is not None:
            if named.tasks is not None and set(tasks).isdisjoint(named.tasks):
                raise HTTPError(
                    400,
                    f"model {named.name!r} cannot {' or '.join(tasks)}, it can "
                    f"{_with_routes(named.tasks)}; {self._others(tasks)}",
                    "wrong_model",
                    param="model",
                )
            return named
        for task in tasks:
            # One whose files cannot be read may be the one that is meant.
            able = [model for model in self if model.tasks is None or task in model.tasks]
            if len(able) == 1 or (able and not name):
                return able[0]
            if missing := [model for model in able if model.state != "ready"]:
                return missing[0]  # it says when to come again, or why it cannot be loaded
            if able:
                names = ", ".join(model.name for model in able)
                raise HTTPError(
                    404,
                    f"no model {name!r:.80} here; there is {names}",
                    "not_found",
                    param="model",
                )
        found = dict.fromkeys(task for model in self for task in model.tasks or ())
        raise HTTPError(
            400,
            f"no model here can {' or '.join(tasks)}, they can {_with_routes(found)}; start the "
            f"server with one that can{_which(tasks)}",
            "wrong_model",
            param="model",
        )

    def _others(self, tasks: Tasks) -> str:
        names = [
            model.name
            for model in self
            if model.tasks is None or not set(tasks).isdisjoint(model.tasks)
        ]
        if names:
            return f"there is {', '.join(names)}"
        return f"no other model can{_which(tasks)}"

    @property
    def is_ready(self) -> bool:
        """Whether every model is loaded."""
        return all(model.state == "ready" for model in self)

    @property
    def failure(self) -> EmbedlibError | None:
        """Why the server must not go on: none of its models could be loaded; None: it may."""
        if not self._models or any(model.state != "failed" for model in self):
            return None
        if self._has_several:
            return EmbedlibError("no model could be loaded; the log has the reason of each")
        (model,) = self
        return EmbedlibError(f"{model.name} could not be loaded: {model.error}")

    @property
    def _has_several(self) -> bool:
        return len(self._models) > 1

    async def load(self, *, tells_failure: bool) -> None:
        """Load the models one after the other; one that fails leaves the others usable.

        Args:
            tells_failure: whether the caller tells `failure`, which has the reason of a lone model:
                it is not logged then.
        """
        for model in self:
            try:
                await self._loader.run(model.make)
            except (EmbedlibError, OSError, MemoryError) as error:
                model.error = str(error) or type(error).__name__
                if self._has_several or not tells_failure:
                    logging.getLogger(__name__).error("%s: %s", model.name, model.error)
            except Exception as error:
                model.error = typed_line(error)
                logging.getLogger(__name__).exception("%s", model.name)

    @property
    def is_loading(self) -> bool:
        """Whether a load runs, which may go on after `close`."""
        return self._loader.is_running

    async def close(self, load_seconds: float | None = None) -> None:
        """Close every model, also those after one that cannot be closed in time.

        Args:
            load_seconds: to wait for a load, which cannot be ended; None: until it ends by itself.
        """
        async with AsyncExitStack() as stack:
            for model in reversed(list(self)):
                for threads in (model.feeders, model.token_calls):
                    stack.push_async_callback(asyncio.to_thread, threads.shutdown)
                stack.push_async_callback(asyncio.to_thread, model.close)
            await asyncio.to_thread(self._loader.join, load_seconds)


def _tasks_of(session: AnyModel) -> Tasks:
    match session:
        case Reranker():
            return ("rerank",)
        case Classifier():
            return ("classify",)
    return _embedder_tasks(session.spec, has_sparse_head(session))


def _embedder_tasks(spec: ModelSpec, with_head: bool) -> Tasks:
    if spec.late_interaction is not None:
        return ("embed_multi_vector",)
    if spec.is_sparse:
        return ("embed_sparse",)
    return ("embed", "embed_sparse") if with_head else ("embed",)


def _which(tasks: Tasks) -> str:
    """Return which models can, where their names do not tell."""
    if tasks != ("embed_sparse",):
        return ""
    return (
        "; SPLADE models can, and those with a sparse_linear.safetensors beside their config.json "
        "(embedlib convert makes it of BAAI/bge-m3's sparse_linear.pt)"
    )


def _with_routes(tasks: Iterable[Task]) -> str:
    return ", ".join(f"{task} (POST {ROUTE_OF[task]})" for task in tasks)


def load_by_kind(
    name: str | PathLike[str], config: Config, tell: Callable[[Tasks], None]
) -> AnyModel:
    """Load a model as what its files say it is.

    Raises:
        what `Embedder` raises.
    """
    with OpenedModel.described(name, config) as opened:
        files = opened.read_files(with_head=opened.has_head)
        is_sparse = has_token_head(files, "sparse")
    head = files.spec.head
    if head is None:
        tell(_embedder_tasks(files.spec, is_sparse))
        return Embedder(name, config=config)
    if head.template is not None or len(head.labels) == 1:
        tell(("rerank",))
        return Reranker(name, config=config)
    tell(("classify",))
    return Classifier(name, config=config)
