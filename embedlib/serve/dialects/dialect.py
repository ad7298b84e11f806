"""How a dialect words an error, and the row of a route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final, TypeAlias

import msgspec

from embedlib.serve.errors import HTTPError
from embedlib.serve.requests.asgi import JSON, Response
from embedlib.serve.requests.exchange import Exchange

Handle: TypeAlias = Callable[[Exchange], Awaitable[Response]]


@dataclass(frozen=True)
class Dialect:
    """The errors of a family of clients."""

    write: Callable[[HTTPError, int], object]
    """Returns the body of an error with this status."""
    statuses: Mapping[str, int] = field(default_factory=lambda: {"invalid": 400})
    """Statuses by kind of error, where they differ from the error's own."""

    def respond(self, error: HTTPError) -> Response:
        """Return the response of an error."""
        status = self.statuses.get(error.kind, error.status)
        body = msgspec.json.encode(self.write(error, status))
        return Response(body, status, headers=error.headers())


@dataclass(frozen=True)
class Route:
    """A method and a path, and who answers them."""

    method: str
    path: str
    """A path that ends in a slash stands for all paths below it, `{id}` for one part of a path."""
    handle: Handle
    dialect: Dialect
    summary: str
    """One line for `/openapi.json`."""
    body: type | None = None
    """The type of the body, for `/openapi.json`; None: it has none."""
    _: KW_ONLY
    needs_key: bool = True
    takes_parts: bool = False
    """Whether the handler reads the body itself, in parts; it is multipart/form-data."""
    keeps_jobs: bool = False
    """Whether the server needs a folder for it."""
    status: int = 200
    """Of the answer, for `/openapi.json`."""
    parameters: tuple[str, ...] = ()
    """Names of the query's parameters, for `/openapi.json`."""

    @property
    def is_open(self) -> bool:
        """Whether it stands for more than one path."""
        return "{id}" in self.path or (self.path.endswith("/") and self.path != "/")

    def rest_of(self, path: str) -> str | None:
        """Return the part of a path that this route leaves open; None: the path is another's."""
        head, has_id, tail = self.path.partition("{id}")
        if has_id:
            rest = path[len(head) : len(path) - len(tail)]
            is_one = path == f"{head}{rest}{tail}" and rest != "" and "/" not in rest
            return rest if is_one else None
        if self.is_open and path.startswith(self.path):
            return path[len(self.path) :]
        return "" if path == self.path else None


job_route: Final = partial(Route, keeps_jobs=True)
"""Makes a route that reads or changes jobs."""


def _openai_error(error: HTTPError, status: int) -> dict[str, object]:
    """Source: openai-python, `_exceptions.py`; names of types as the service has them."""
    kinds = {
        "unauthorized": ("authentication_error", "invalid_api_key"),
        "overloaded": ("overloaded", "overloaded"),
        "not_found": ("invalid_request_error", "model_not_found"),
        "missing": ("invalid_request_error", "not_found"),
        "too_long": ("invalid_request_error", "context_length_exceeded"),
        "unavailable": ("server_error", "unavailable"),
        "not_loaded": ("server_error", "unavailable"),
        "timeout": ("timeout", "timeout"),
    }
    plain = ("server_error" if status >= 500 else "invalid_request_error", error.kind)
    kind, code = kinds.get(error.kind, plain)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


OPENAI = Dialect(_openai_error)


def _shared_error(error: HTTPError, status: int) -> object:
    """Source: voyageai 0.5, `api_requestor.py`.

    Without `detail` it takes 401 and 429 for a bug of the server, and does not come again.
    """
    return {**_openai_error(error, status), "detail": error.message}


OPENAI_AND_VOYAGE = Dialect(_shared_error)


def _tei_error(error: HTTPError, status: int) -> object:
    """Source: text-embeddings-inference 1.9, router/src/http/types.rs."""
    types = {
        "overloaded": "Overloaded",
        "empty": "Empty",
        "failed": "Backend",
        "internal": "Backend",
        "wrong_model": "Backend",
        "unavailable": "Unhealthy",
        "not_loaded": "Unhealthy",
    }
    return {"error": error.message, "error_type": types.get(error.kind, "Validation")}


TEI = Dialect(
    _tei_error,
    {"invalid": 422, "too_long": 422, "wrong_model": 424, "failed": 424},
)


# Source: cohere-python 7, `core/api_error.py`: the body is an object with a message.
COHERE = Dialect(lambda error, status: {"message": error.message})
# Source: ollama's api.md and Baseten's documentation, inference errors: an object.
OLLAMA = BASETEN = Dialect(lambda error, status: {"error": error.message})


def check_json(response: Response, what: str) -> Response:
    """Return a response that can be part of a JSON document, such as a job's answer.

    Raises:
        HTTPError: it is bytes.
    """
    if response.content_type != JSON:
        raise HTTPError(
            400,
            f"encoding_format: {what} is JSON; use float or base64",
            param="encoding_format",
        )
    return response
