"""The access log: a JSON line for each request, without its texts and keys."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Sequence
from time import time
from typing import Any, Final, TextIO

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


def line_of(
    exchange: Exchange, status: int, seconds: float, num_bytes: int, message: str
) -> dict[str, Any]:
    """Return the line of a request that is over; `message` is that of its error."""
    request, usage = exchange.request, exchange.work.usage
    facts: dict[str, Any] = {
        "time": round(time() * 1e3) / 1e3,
        "request_id": exchange.request_id,
        "method": request.method,
        "route": request.path[:200],
        "status": status,
        "model": exchange.model.name if exchange.model else None,
        "lane": _NAMES[exchange.work.lane],
        "texts": usage.num_texts,
        "tokens": usage.num_tokens,
        "truncated": len(usage.truncated),
        # To a whole number of microseconds: rounding to digits takes several times as long.
        "ms": round(seconds * 1e6) / 1e3,
        "tokenize_ms": round(usage.tokenize_seconds * 1e6) / 1e3,
        "queue_ms": round(usage.queue_seconds * 1e6) / 1e3,
        "compute_ms": round(usage.compute_seconds * 1e6) / 1e3,
        "bytes_in": len(exchange.body),
        "bytes_out": num_bytes,
        "client": request.client,
        "user_agent": request.headers.get("user-agent", "")[:200],
    }
    if status >= 500:
        facts["error"] = message  # below 500 it may quote what the client sent
    return facts


class AccessLog:
    """Writes lines on a thread of its own: a reader that stalls must not stall the server."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Take the stream; None: standard output. The first line starts the thread."""
        self._stream = stream or sys.stdout
        self._lines: deque[bytes] = deque()
        """One thread appends, the log's own takes: neither needs a lock."""
        self._has_lines = threading.Event()
        self._closed = threading.Event()
        self._num_dropped = 0
        """The writer's; only ever more."""
        self._thread: WorkerThread | None = None

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line; never blocks. One thread may call it."""
        if len(self._lines) >= MAX_LINES:
            self._num_dropped += 1
            return
        self._lines.append(msgspec.json.encode(facts))
        if not self._has_lines.is_set():
            self._has_lines.set()
            if self._thread is None:
                self._thread = WorkerThread(self._run, "embedlib-serve-log")
                self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left and end the thread, within some seconds."""
        self._closed.set()
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        num_told = 0
        while True:
            self._has_lines.wait()
            is_closed = self._closed.wait(GATHER_SECONDS)
            self._has_lines.clear()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if dropped := self._num_dropped - num_told:
                num_told += dropped
                lines.append(msgspec.json.encode({"dropped_lines": dropped}))
            try:
                if lines:
                    self._write(lines)
                    self._stream.flush()
            except (OSError, ValueError):  # the reader is gone: serve on without a log
                return
            if is_closed:
                return

    def _write(self, lines: Sequence[bytes]) -> None:
        try:
            self._stream.write(b"\n".join(lines).decode() + "\n")
        except UnicodeEncodeError:  # paths and agents have any letters, the stream fewer
            self._stream.writelines(json.dumps(json.loads(line)) + "\n" for line in lines)
