"""A server of many machines: what `embedlib serve --ray` needs of the package that offers it.

The entry point `ray` of the group `embedlib.fleets` is a function like `ServeFleet`. This is also
the one import address of what such a package takes from a server: the names of `__all__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from embedlib.config import Config
from embedlib.packages.installing import load_offered
from embedlib.serve.app import Application, headers_of
from embedlib.serve.dialects.dialect import Handle, Route
from embedlib.serve.errors import ClientGoneError, HTTPError
from embedlib.serve.keys import Keys
from embedlib.serve.models.catalog import Task
from embedlib.serve.models.sessions import computed
from embedlib.serve.options import ServeOptions
from embedlib.serve.remote import ElsewhereError, RemoteModels
from embedlib.serve.requests.asgi import Message, Receive, Request, Response, Scope, Send
from embedlib.serve.requests.bodies import BodyReader
from embedlib.serve.requests.exchange import Exchange
from embedlib.serve.routes import check_entrance, find_route

__all__ = [
    "Application",
    "BodyReader",
    "ClientGoneError",
    "ElsewhereError",
    "Exchange",
    "HTTPError",
    "Handle",
    "Keys",
    "Message",
    "Receive",
    "RemoteModels",
    "Replicas",
    "Request",
    "Response",
    "Route",
    "Scope",
    "Send",
    "ServeFleet",
    "Task",
    "check_entrance",
    "computed",
    "find_fleet",
    "find_route",
    "headers_of",
]

ENTRY_POINT_GROUP = "embedlib.fleets"


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many there are of each model, for each lane."""

    min_replicas: int
    max_replicas: int
    cpus: float
    """Cores of each."""


class ServeFleet(Protocol):
    """Serves models on a cluster until the program is told to end."""

    def __call__(
        self,
        models: Mapping[str, str],
        address: str,
        *,
        host: str,
        port: int,
        config: Config,
        options: ServeOptions,
        replicas: Replicas,
        on_start: Callable[[], None],
    ) -> None:
        """Serve models, by the names that requests call them; tell when requests are answered.

        Raises:
            ConfigError: there is no such cluster, or its package is missing.
        """


def find_fleet() -> ServeFleet:
    """Return the function that serves on a Ray cluster.

    Raises:
        ConfigError: its package is not installed; the message has the command that installs it.
    """
    return cast("ServeFleet", load_offered(ENTRY_POINT_GROUP, "ray", "serve,ray"))
