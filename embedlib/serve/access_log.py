"""The access log: a JSON line for each request, without its texts and keys."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from functools import partial
from time import time
from typing import Final, TextIO

import msgspec

from embedlib.closing import WorkerThread
from embedlib.engines.base import Lane
from embedlib.serve.exchange import Exchange

MAX_LINES = 10_000
"""Lines kept while the reader of the log is slow; more are dropped and counted."""
GATHER_SECONDS = 0.05
"""Lines of this time are written at once: waking a thread costs more than a line."""

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
        len(exchange.body),
        num_bytes,
        request.client,
        request.headers.get("user-agent", "")[:200],
        message if status >= 500 else msgspec.UNSET,  # below 500 it may quote what the client sent
    )


class AccessLog:
    """Writes lines on a thread of its own: a reader that stalls must not stall the server."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Take the stream; None: standard output. The first line starts the thread."""
        self._stream: TextIO | None = stream or sys.stdout
        """None: the process was started with its standard output closed."""
        self._lines: deque[object] = deque()
        """One thread appends, the log's own takes: neither needs a lock."""
        self._has_lines = threading.Event()
        self._closed = threading.Event()
        self._num_dropped = 0
        """The writer's; only ever more."""
        self._thread: WorkerThread | None = None

    def write(self, facts: object) -> None:
        """Add a line, which the log's thread encodes; never blocks. One thread may call it."""
        if self._stream is None:
            return
        if len(self._lines) >= MAX_LINES:
            self._num_dropped += 1
            return
        self._lines.append(facts)
        if not self._has_lines.is_set():
            self._has_lines.set()
            if self._thread is None:
                self._thread = WorkerThread(partial(self._run, self._stream), "embedlib-serve-log")
                self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left and end the thread, within some seconds."""
        self._closed.set()
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, stream: TextIO) -> None:
        num_told = 0
        encode = msgspec.json.Encoder().encode_lines
        while True:
            self._has_lines.wait()
            is_closed = self._closed.wait(GATHER_SECONDS)
            self._has_lines.clear()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if dropped := self._num_dropped - num_told:
                num_told += dropped
                lines.append({"dropped_lines": dropped})
            try:
                if lines:
                    _write(stream, encode(lines).decode())
                    stream.flush()
            except (OSError, ValueError):  # the reader is gone: serve on without a log
                return
            if is_closed:
                return


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # paths and agents have any letters, the stream fewer
        stream.writelines(json.dumps(json.loads(line)) + "\n" for line in text.split("\n") if line)
