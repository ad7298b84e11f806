"""Vectors that a server makes of texts, by OpenAI's or text-embeddings-inference's protocol.

Source: platform.openai.com, API reference, "Create embeddings";
github.com/huggingface/text-embeddings-inference, docs/openapi.json, `/embed`.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ConfigError, SourceError, first_line, shown
from embedlib.matching.theirs import as_vector
from embedlib.version import __version__

KEY_VARIABLE: Final = "EMBEDLIB_VERIFY_API_KEY"
"""Its own, so that a key for one service is never sent to another one."""
REQUEST_TEXTS: Final = 8
SECONDS: Final = 120.0
MAX_ANSWER_BYTES: Final = 64 << 20
MAX_SAID_BYTES: Final = 8192
"""Of a refusal; more than is shown, so that a key in it is seen whole."""
SHOWN_CHARACTERS: Final = 200


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: the key is for the host that the user named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class Server:
    """An address that makes vectors.

    Attributes:
        url: ends in /embed for text-embeddings-inference's own protocol; else OpenAI's.
        model: the name of the model there.
        key: the API key; None: none is sent.
        dim: how many numbers a vector shall have; None: as many as the server gives.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    dim: int | None = None

    def __post_init__(self) -> None:
        """Check the address.

        Raises:
            ConfigError: it is no address, or holds a password.
        """
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigError(f"--against {self.place}: is no address of a server")
        if parts.username is not None:  # which is empty in front of a password alone
            raise ConfigError(
                f"--against {self.place}: leave out user and password; the key is read from "
                f"{KEY_VARIABLE}"
            )
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"{KEY_VARIABLE} has a character that no header can carry")

    @property
    def place(self) -> str:
        """The address for messages: without user, password and query, which may hold secrets."""
        scheme, _, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        host, _, query = host.partition("?")
        if "@" in query:  # of a password with a question mark, or of a query
            host = ""
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[N, D]: what the server makes of texts.

        Raises:
            SourceError: it cannot be reached, refuses, or answers with something else.
        """
        vectors: list[NDArray[np.float32]] = []
        for first in range(0, len(texts), REQUEST_TEXTS):
            part = list(texts[first : first + REQUEST_TEXTS])
            found = self._ask(part)
            if len(found) != len(part):
                raise SourceError(f"{self.place} made {len(found)} vectors of {len(part)} texts")
            vectors += [as_vector(row, f"{self.place}: a vector") for row in found]
        if len({len(vector) for vector in vectors}) != 1:
            raise SourceError(f"{self.place} made vectors of several lengths")
        for text, vector in zip(texts, vectors, strict=True):
            if not np.isfinite(vector).all():
                raise SourceError(
                    f"{self.place} made a vector with NaN or infinity of {shown(text)}; leave that "
                    "text out of --texts"
                )
        return np.stack(vectors)

    @property
    def _is_tei(self) -> bool:
        return urlsplit(self.url).path.rstrip("/").endswith("/embed")

    def _ask(self, texts: list[str]) -> list[Any]:
        """Return the vectors of one request as they came."""
        dimensions = {} if self.dim is None else {"dimensions": self.dim}
        if self._is_tei:
            answer = self._post(self.url, {"inputs": texts, "truncate": True, **dimensions})
            return answer if isinstance(answer, list) else self._fail(answer)
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        if not path.endswith("/embeddings"):
            path = f"{path or '/v1'}/embeddings"
        body = {"model": self.model, "input": texts, "encoding_format": "float", **dimensions}
        answer = self._post(parts._replace(path=path).geturl(), body)
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and type(row.get("index")) is int for row in rows
        ):
            self._fail(answer)
        return [row.get("embedding") for row in sorted(rows, key=lambda row: row["index"])]

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": f"embedlib/{__version__}"}
        request = Request(url, json.dumps(body).encode(), headers)
        if self.key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            with build_opener(_NoRedirect).open(request, timeout=SECONDS) as answer:
                content = answer.read(MAX_ANSWER_BYTES + 1)
        except HTTPError as error:
            said = ""
            with error, suppress(OSError, http.client.HTTPException):  # of a torn connection
                said = error.read(MAX_SAID_BYTES).decode("utf-8", "replace")
            raise self._error(f"answers {error.code}: {said or error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # an address, not ASCII
            reason = error.reason if isinstance(error, URLError) else error
            raise self._error(f"cannot be asked: {first_line(OSError(str(reason)))}") from None
        if len(content) > MAX_ANSWER_BYTES:
            raise self._error(f"answers with more than {MAX_ANSWER_BYTES >> 20} MiB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self._error("does not answer with JSON") from None

    def _fail(self, answer: object) -> NoReturn:
        protocol = "text-embeddings-inference's /embed" if self._is_tei else "OpenAI's embeddings"
        raise self._error(f"does not answer as {protocol}: {json.dumps(answer)}")

    def _error(self, said: str) -> SourceError:
        # A server may repeat what it was sent.
        said = said.replace(self.key, "***") if self.key else said
        return SourceError(f"{self.place} {' '.join(said.split())[:SHOWN_CHARACTERS]}")
