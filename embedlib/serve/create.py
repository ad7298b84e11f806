"""`create_app`: an ASGI application that serves models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import Any, TypeAlias

from embedlib.checks import Kind, is_unicode
from embedlib.config import Config
from embedlib.errors import ConfigError, shown
from embedlib.indexing.sinks.protocol import Sink
from embedlib.serve.app import Application
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.models.catalog import ServedModel, load_by_kind
from embedlib.serve.models.sessions import AnyModel
from embedlib.serve.options import ServeOptions
from embedlib.serve.tracing import Tracing
from embedlib.session.arguments import is_list, one_config
from embedlib.session.base import Session

ModelName: TypeAlias = str | PathLike[str]

DEFAULT_SEARCH = "default"
"""The name of a destination that was given without one."""
_MODEL = Kind(
    "a folder, a hub name, package:NAME, or an Embedder, Reranker or Classifier",
    lambda value: isinstance(value, str | PathLike | Session),
)
_MODELS = Kind('a model\'s name, a list of names, or a mapping such as {"NAME": model}', is_list)
_OPTIONS = Kind("a ServeOptions", lambda value: isinstance(value, ServeOptions))
_SEARCHED = Kind(
    'a destination\'s URL, or a mapping such as {"NAME": URL}',
    lambda value: isinstance(value, Mapping),
)


def create_app(
    models: ModelName | Sequence[ModelName] | Mapping[str, ModelName | AnyModel],
    *,
    config: Config | None = None,
    options: ServeOptions | None = None,
    log: AccessLog | None = None,
    search: str | Mapping[str, str | Sink] | None = None,
    tracing: Tracing | None = None,
) -> Application:
    """Return an ASGI application that serves models; mount it, or give it to a server.

    It loads them when its server starts, in the background, and closes them when it ends, also
    those of yours. An application that is mounted has no start of its own: await
    `application.start()` and `application.close()` in the lifespan of the outer one.

    Args:
        models: folders, hub names or `package:NAME`; or a mapping from the names that requests
            use to these, or to an `Embedder`, `Reranker` or `Classifier` of yours.
        config: options of the models that are loaded; cores are divided between them.
        options: the bounds of the server.
        log: where a line for each request goes; None: nowhere.
        search: what `POST /v1/search` searches: the URL of a destination that `embedlib.index`
            loaded, or a mapping from the names that requests use to URLs or sinks. Each is opened
            at once, and gets the model of its rows among those served.
        tracing: where spans of OpenTelemetry for requests and jobs go, as `open_tracing` and
            `Tracing(provider)` return it; None: nowhere. It is closed at the end.

    Raises:
        ConfigError: there is no model, or two of the same name, an argument has another type, or
            an option of the models has no effect here.
        SinkError: a destination cannot be read, or holds nothing.
    """
    named = _named(models)
    if not named:
        raise ConfigError("there is no model to serve; give a folder, a hub name or package:NAME")
    names = [name for name, _ in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called {twice!r}; give one another name")
    config = one_config(config, {})
    if config.on_truncate in ("error", "chunk"):
        raise ConfigError(
            f"on_truncate = {config.on_truncate!r}: of a server each request says what becomes of "
            "its long texts; leave it out, and send truncate: false with requests to refuse them"
        )
    options = _OPTIONS.take("options", ServeOptions() if options is None else options)
    searched = {DEFAULT_SEARCH: search} if isinstance(search, str) else search
    num_loaded = sum(not isinstance(model, Session) for _, model in named)
    threads = max(1, config.num_threads // max(1, num_loaded))
    # Who sends a long text reads of it in the answer; a warning would reach nobody.
    shared = replace(config, threads=threads, on_truncate="ignore")
    return Application(
        [_served(name, model, shared, options) for name, model in named],
        options,
        log,
        _SEARCHED.take("search", {} if searched is None else searched),
        tracing,
    )


def _named(models: object) -> list[tuple[Any, Any]]:
    if isinstance(models, Mapping):
        return list(models.items())
    given = [models] if isinstance(models, str | PathLike) else _MODELS.take("models", models)
    return [(fspath(each) if isinstance(each, PathLike) else each, each) for each in given]


def _served(name: object, model: Any, config: Config, options: ServeOptions) -> ServedModel:
    if not is_unicode(name) or not name:
        raise ConfigError(
            f'a model is called {shown(name)}; give it a name: {{"NAME": model}} '
            "(--name NAME=MODEL)"
        )
    if isinstance(_MODEL.take(f"models[{name!r}]", model), Session):
        return ServedModel(name, lambda tell: model, options, source=model.model_name)
    source = fspath(model).encode(errors="replace").decode()  # as answers can tell it
    return ServedModel(name, partial(load_by_kind, model, config), options, source=source)
