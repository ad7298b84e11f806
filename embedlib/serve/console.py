"""The page for people at `/ui`: three static files, which ask the server's own routes.

It loads nothing from elsewhere, and its policy forbids a browser to. It needs no API key, since it
shows nothing by itself: what it asks for needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files

from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange

_SECURITY = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
]


@dataclass(frozen=True)
class _File:
    """A file of the page."""

    content: bytes
    content_type: str
    etag: str

    @classmethod
    def read(cls, name: str, content_type: str) -> _File:
        content = files("embedlib.serve").joinpath("page", name).read_bytes()
        return cls(content, content_type, f'"{sha256(content).hexdigest()[:16]}"')


async def _answer(file: _File, exchange: Exchange) -> Response:
    """Answer `GET` of a file."""
    if exchange.request.path.endswith("/"):  # the addresses in the page begin at /ui
        return Response(b"", 308, headers=[("location", "../ui")])
    headers = [("etag", file.etag), *_SECURITY]
    if exchange.request.headers.get("if-none-match") == file.etag:
        return Response(b"", 304, file.content_type, headers)
    return Response(file.content, content_type=file.content_type, headers=headers)


ROUTES = tuple(
    Route(
        "GET",
        path,
        partial(_answer, _File.read(name, f"{content_type}; charset=utf-8")),
        OPENAI,
        "The page for people.",
        needs_key=False,
    )
    for path, name, content_type in (
        ("/ui", "index.html", "text/html"),
        ("/ui/console.css", "console.css", "text/css"),
        ("/ui/console.js", "console.js", "text/javascript"),
    )
)
