"""The access log: a JSON line for each request, without its texts and keys."""

from __future__ import annotations

import json
import sys
from time import time
from typing import Final, TextIO

import msgspec

from embedlib.engines.base import Lane
from embedlib.serve.logs.line_writer import LineWriter
from embedlib.serve.requests.exchange import Exchange

_NAMES: Final[dict[Lane | None, str | None]] = {None: None, **{lane: lane.value for lane in Lane}}
"""Of lanes: an attribute of an enum is looked up in Python."""


class Line(msgspec.Struct):
    """The line of a request; a struct costs a third of a dict."""

    time: float
    request_id: str
    method: str
    route: str
    status: int
    model: str | None
    lane: str | None
    texts: int
    tokens: int
    truncated: int
    ms: float
    tokenize_ms: float
    queue_ms: float
    compute_ms: float
    bytes_in: int
    bytes_out: int
    client: str
    user_agent: str
    error: str | msgspec.UnsetType = msgspec.UNSET


def line_of(exchange: Exchange, status: int, seconds: float, num_bytes: int, message: str) -> Line:
    """Return the line of a request that is over; `message` is that of its error."""
    request, usage = exchange.request, exchange.work.usage
    return Line(
        round(time() * 1e3) / 1e3,
        exchange.request_id,
        request.method,
        request.path[:200],
        status,
        exchange.model.name if exchange.model else None,
        _NAMES[exchange.work.lane],
        usage.num_texts,
        usage.num_tokens,
        len(usage.truncated),
        # To a whole number of microseconds: rounding to digits takes several times as long.
        round(seconds * 1e6) / 1e3,
        round(usage.tokenize_seconds * 1e6) / 1e3,
        round(usage.queue_seconds * 1e6) / 1e3,
        round(usage.compute_seconds * 1e6) / 1e3,
        exchange.num_body_bytes,
        num_bytes,
        request.client,
        request.headers.get("user-agent", "")[:200],
        message if status >= 500 else msgspec.UNSET,  # below 500 it may quote what the client sent
    )


class AccessLog(LineWriter):
    """Writes the lines as JSON."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Take the stream; None: standard output."""
        super().__init__(stream or sys.stdout, "embedlib-serve-log")
        self._encode = msgspec.json.Encoder().encode_lines

    def _write(self, stream: TextIO, lines: list[object]) -> None:
        text = self._encode(lines).decode()
        try:
            stream.write(text)
        except UnicodeEncodeError:  # paths and agents have any letters, the stream fewer
            stream.writelines(
                json.dumps(json.loads(line)) + "\n" for line in text.split("\n") if line
            )

    def _of_dropped(self, num_lines: int) -> object:
        return {"dropped_lines": num_lines}
