"""Who may enter a model now: in texts and tokens, for each lane. Runs on the event loop alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from embedlib.engines.base import Lane
from embedlib.serve.errors import HTTPError
from embedlib.serve.options import ServeOptions


class Load(NamedTuple):
    """The work of a request."""

    texts: int
    tokens: int
    """As estimated: they are not tokenized yet."""


@dataclass(slots=True)
class Unread:
    """The answers of a server that their clients have not read, as its own connections count."""

    num_bytes: int = 0


@dataclass(slots=True)
class _Waiting:
    load: Load
    turn: asyncio.Future[None]


class Admission:
    """The door of one model.

    Queries enter at once or are told to come again. Bulk requests enter in their order while the
    texts and tokens inside stay below bounds; the others wait, and when too many wait, or clients
    leave too much unread, they are told to come again. A request larger than a bound enters alone.
    """

    def __init__(self, options: ServeOptions, tokens_per_second: Callable[[], float]) -> None:
        """Open the door.

        Args:
            options: the bounds.
            tokens_per_second: returns the measured rate of the model; 0: not known.
        """
        self._options = options
        self._tokens_per_second = tokens_per_second
        self._waiting: deque[_Waiting] = deque()
        self.inside = {Lane.QUERY: 0, Lane.BULK: 0}
        """Texts that the model works on."""
        self.tokens_inside = {Lane.QUERY: 0, Lane.BULK: 0}
        self.waiting_texts = 0
        self.waiting_tokens = 0
        self.unread = Unread()
        """Of all models of the server, which gives its own."""

    def queued(self, lane: Lane) -> Load:
        """Return what the model works on, and what waits at the door."""
        texts, tokens = self.inside[lane], self.tokens_inside[lane]
        if lane is Lane.QUERY:
            return Load(texts, tokens)
        return Load(texts + self.waiting_texts, tokens + self.waiting_tokens)

    @property
    def seconds_of_work(self) -> float:
        """Seconds that the texts inside and at the door need; 0 while the rate is not known."""
        rate = self._tokens_per_second()
        return sum(self.queued(lane).tokens for lane in Lane) / rate if rate else 0.0

    async def take(self, lane: Lane, load: Load) -> None:
        """Take a place for a request, until `give_back`.

        Raises:
            HTTPError: there is no place, now or within `max_wait_seconds`.
        """
        if lane is Lane.QUERY:
            if not self._enters(lane, load, self._options.max_query_texts):
                raise self._rejected("queries")
        elif self.unread.num_bytes > self._options.max_unread_bytes:
            raise HTTPError.overloaded(
                f"clients have not read {self.unread.num_bytes:,} bytes of answers, the limit is "
                f"{self._options.max_unread_bytes:,}; read them, then come again",
                seconds=1,
            )
        elif self._waiting or not self._enters(lane, load, self._options.max_bulk_texts):
            await self._wait(load)

    def give_back(self, lane: Lane, load: Load) -> None:
        """Leave a place, and let in who waits for it."""
        self.inside[lane] -= load.texts
        self.tokens_inside[lane] -= load.tokens
        self._let_in()

    def _enters(self, lane: Lane, load: Load, max_texts: int) -> bool:
        """Take a place, if there is one."""
        texts = self.inside[lane] + load.texts
        tokens = self.tokens_inside[lane] + load.tokens
        fits = texts <= max_texts and tokens <= self._options.max_queued_tokens
        if not fits and self.inside[lane]:
            return False
        self.inside[lane], self.tokens_inside[lane] = texts, tokens
        return True

    async def _wait(self, load: Load) -> None:
        if len(self._waiting) >= self._options.max_waiting_requests:
            raise self._rejected("texts")
        waiting = _Waiting(load, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._count_waiting(load, 1)
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the turn.
            await asyncio.wait({waiting.turn}, timeout=self._options.max_wait_seconds)
            if waiting.turn.done():
                return
            raise self._rejected("texts")
        except BaseException:
            if waiting.turn.done():  # it was let in, and its task is cancelled
                self.give_back(Lane.BULK, load)
            else:
                waiting.turn.cancel()
                self._waiting.remove(waiting)
                self._count_waiting(load, -1)
                self._let_in()
            raise

    def _count_waiting(self, load: Load, sign: Literal[1, -1]) -> None:
        self.waiting_texts += sign * load.texts
        self.waiting_tokens += sign * load.tokens

    def _let_in(self) -> None:
        bound = self._options.max_bulk_texts
        # Its place, until its task runs.
        while self._waiting and self._enters(Lane.BULK, self._waiting[0].load, bound):
            first = self._waiting.popleft()
            self._count_waiting(first.load, -1)
            first.turn.set_result(None)

    def _rejected(self, what: str) -> HTTPError:
        seconds = self.seconds_of_work or 1.0
        return HTTPError.overloaded(
            f"the model has {what} for {seconds:.1f} seconds; come again then", seconds
        )
