"""What Infinity's tests import: its server's factory, whose servers are ours."""

from __future__ import annotations

import csv
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import httpx
import serving


@dataclass
class EngineArgs:
    """A model of a server; the other arguments choose Infinity's engine."""

    model_name_or_path: str
    batch_size: int = 0
    engine: str = ""
    device: str = ""


@dataclass
class App:
    """A server that starts when it is first asked."""

    engine_args_list: list[EngineArgs]
    url_prefix: str = ""
    api_key: str = ""

    @property
    def url(self) -> str:
        """Its URL."""
        return serving.url_of(
            [each.model_name_or_path for each in self.engine_args_list], key=self.api_key
        )


class Client(httpx.AsyncClient):
    """httpx's client as it was when it took an application."""

    def __init__(self, app: App | None = None, **options: Any) -> None:
        """Speak to the server of the application."""
        if app is not None:
            options |= {"base_url": app.url, "timeout": 60.0}
        super().__init__(**options)


class LifespanManager:
    """The application's start and end; a server of ours has its own."""

    def __init__(self, app: App) -> None:
        """Take the application."""

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""


def install(checkout: Path) -> None:
    """Put the modules in place."""
    names = SimpleNamespace(auto="auto", cpu="cpu", torch="torch", debugengine="debugengine")
    for name, content in {
        "infinity_emb": {"create_server": App},
        "infinity_emb.args": {"EngineArgs": EngineArgs},
        "infinity_emb.primitives": {"Device": names, "InferenceEngine": names},
        "asgi_lifespan": {"LifespanManager": LifespanManager},
    }.items():
        sys.modules[name] = made = ModuleType(name)
        vars(made).update(content)
    httpx.AsyncClient = Client  # type: ignore[misc]
    from sentence_transformers import util

    util.http_get = write_sentences  # the tests would load the data set of the same layout


def write_sentences(url: str, path: str) -> None:
    """Write sentences in the layout of the STS benchmark."""
    with gzip.open(_parents_made(path), "wt", encoding="utf8") as file:
        rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows.writerow(["split", "score", "sentence1", "sentence2"])
        for number in range(64):
            rows.writerow(["train", "2.5", f"a text, number {number}", f"{number} other words"])


def _parents_made(path: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return path
