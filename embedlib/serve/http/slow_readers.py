"""Cuts off clients that do not read their answer, which stays in memory for as long as they live.

Source: uvicorn 0.54, `protocols/http/httptools_impl.py`; asyncio, "Streaming Protocols", on
`pause_writing`.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from embedlib.serve.models.admission import Unread


class ReadLimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which closes connections whose client reads nothing for some time.

    One that reads slowly is left alone: whenever the time is over, less must be left than before.
    """

    answer_seconds: ClassVar[float]
    """The time."""
    unread: ClassVar[Unread]
    """Counts what is kept for such clients."""
    _limit: asyncio.TimerHandle | None = None
    _num_unread = 0

    def pause_writing(self) -> None:
        """Wait for the client: more is to be sent than the system takes."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._stop_waiting()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests; `close` would wait for a client that reads."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _wait_for_reader(self) -> None:
        self._count(self.transport.get_write_buffer_size())
        self._limit = self.loop.call_later(self.answer_seconds, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._num_unread:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
            self._count(0)

    def _count(self, num_bytes: int) -> None:
        self.unread.num_bytes += num_bytes - self._num_unread
        self._num_unread = num_bytes
