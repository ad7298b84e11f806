"""A replica of Ray Serve: an application of `embedlib.serve` that is called, not connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from embedlib.config import Config
from embedlib.errors import EmbedlibError, EngineRunError
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.fleet import Application, Message, computed
from embedlib_ray.autoscaling import BUSY, WORK

ModelSource = str | Callable[[], Any]
"""A model's name; or a function that makes an Embedder, Reranker or Classifier in the replica."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request, as it goes from one process to another."""

    method: str
    path: str
    query: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    client: tuple[str, int] | None = None


@dataclass(kw_only=True)
class Answer:
    """Its response."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""


async def answer(application: Application, call: Call) -> Answer:
    """Call an ASGI application; cancelling this drops the texts of the request.

    Source: ASGI, HTTP & WebSocket message format 2.5.
    """
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.5"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": call.query,
        "root_path": "",
        "headers": call.headers,
        "client": call.client,
        "server": None,
    }
    messages: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]
    result, parts = Answer(), list[bytes]()

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the client stays until this call is cancelled
        raise AssertionError("nobody sets the event")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            result.status, result.headers = message["status"], list(message["headers"])
        else:
            parts.append(message.get("body", b""))

    await application(scope, receive, send)
    result.body = b"".join(parts)
    return result


class Loaded:
    """An application of one model, which is loaded."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._looked = monotonic()
        self._computed = 0.0
        """Seconds, up to then."""

    @classmethod
    async def load(
        cls, name: str, source: ModelSource, config: Config, options: ServeOptions
    ) -> Loaded:
        """Load a model.

        Raises:
            EmbedlibError: it cannot be loaded.
        """
        made = source if isinstance(source, str) else await asyncio.to_thread(source)
        application = create_app({name: made}, config=config, options=options)
        await application.start()
        await application.loaded()
        for model in application.catalog:
            if model.error:
                await application.close()
                raise EmbedlibError(f"{name}: {model.error}")
        return cls(application)

    def look(self) -> tuple[float, float]:
        """Return the seconds of work in it, and the share of time it computed since the last."""
        [model] = self.application.catalog
        assert model.session is not None, "it was loaded"
        now, (_, seconds) = monotonic(), computed(model.session)
        busy = min(1.0, (seconds - self._computed) / max(now - self._looked, 1e-3))
        self._looked, self._computed = now, seconds
        return model.admission.seconds_of_work, busy

    def check_health(self) -> None:
        """Raise EngineRunError if the engine will never compute again, as after a GPU's fault."""
        [model] = self.application.catalog
        if model.lost is not None:
            raise EngineRunError(f"{model.name}: {model.lost}")


class ModelReplica:
    """Computes the requests of one model; loaded before Ray sends it the first."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, name: str, source: ModelSource, config: Config, options: ServeOptions
    ) -> None:
        self._loaded = await Loaded.load(name, source, config, options)

    async def answer(self, call: Call, _model: str) -> Answer:
        """Answer a request."""
        return await answer(self._loaded.application, call)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `WorkPolicy` decides by."""
        work, busy = self._loaded.look()
        return {WORK: work, BUSY: busy}

    def check_health(self) -> None:
        """Raise if Ray must replace this replica; Ray calls it every few seconds."""
        self._loaded.check_health()


class SharedReplica:
    """Computes the requests of many models, of which it holds a few; Ray chooses which."""

    def __init__(
        self, sources: Mapping[str, ModelSource], config: Config, options: ServeOptions
    ) -> None:
        self._sources = sources
        self._config = config
        self._options = options
        self._held: dict[str, Loaded] = {}

    async def load(self, name: str) -> Held:
        """Load a model that requests ask for."""
        loaded = await Loaded.load(name, self._sources[name], self._config, self._options)
        self._held[name] = loaded
        return Held(loaded, lambda: self._held.pop(name, None))

    async def answer(self, call: Call, model: str) -> Answer:
        """Answer a request; `load` was made a method that keeps the last ones used."""
        held = await self.load(model)
        with held.used():
            return await answer(held.loaded.application, call)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `WorkPolicy` decides by."""
        looks = [loaded.look() for loaded in list(self._held.values())]
        return {
            WORK: sum(work for work, _ in looks),
            BUSY: min(1.0, sum(busy for _, busy in looks)),
        }

    def check_health(self) -> None:
        """Raise if Ray must replace this replica; Ray calls it every few seconds."""
        for loaded in list(self._held.values()):
            loaded.check_health()


class Held:
    """A model of a `SharedReplica`; Ray awaits its `__del__` when another one takes its place."""

    def __init__(self, loaded: Loaded, forget: Callable[[], object]) -> None:
        self.loaded = loaded
        self._forget = forget
        self._num_running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # Set on the object: Python would call one of the class, too, without awaiting it.
        self.__del__ = self._close

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the model open while a request is answered."""
        self._num_running += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._is_idle.set()

    async def _close(self) -> None:
        self._forget()
        await self._is_idle.wait()
        await self.loaded.application.close()
