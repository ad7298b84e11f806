"""Who may enter a model now: counted in texts, for each lane. Runs on the event loop alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from embedlib.engines.base import Lane
from embedlib.serve.errors import HTTPError
from embedlib.serve.options import ServeOptions


@dataclass(slots=True)
class _Waiting:
    num_texts: int
    turn: asyncio.Future[None]


class Admission:
    """The door of one model.

    Queries enter at once or are told to come again. Bulk requests enter in their order while the
    texts inside stay below a bound; the others wait, and when too many wait, they are told to come
    again. A request larger than the bound enters alone.
    """

    def __init__(self, options: ServeOptions, texts_per_second: Callable[[], float]) -> None:
        """Open the door.

        Args:
            options: the bounds.
            texts_per_second: returns the measured rate of the model; 0: not known.
        """
        self._options = options
        self._texts_per_second = texts_per_second
        self._waiting: deque[_Waiting] = deque()
        self.inside = {Lane.QUERY: 0, Lane.BULK: 0}
        """Texts that the model works on."""
        self.waiting_texts = 0
        self.num_rejected = 0

    @property
    def num_waiting(self) -> int:
        """Bulk requests at the door."""
        return len(self._waiting)

    @property
    def seconds_of_work(self) -> float:
        """Seconds that the texts inside and at the door need; 0 while the rate is not known."""
        rate = self._texts_per_second()
        return (sum(self.inside.values()) + self.waiting_texts) / rate if rate else 0.0

    async def take(self, lane: Lane, num_texts: int) -> None:
        """Take a place for so many texts, until `give_back`.

        Raises:
            HTTPError: there is no place, now or within `max_wait_seconds`.
        """
        if lane is Lane.QUERY:
            if self.inside[lane] and self.inside[lane] + num_texts > self._options.max_query_texts:
                raise self._rejected("queries")
            self.inside[lane] += num_texts
        elif self._waiting or not self._has_place(num_texts):
            await self._wait(num_texts)
        else:
            self.inside[lane] += num_texts

    def give_back(self, lane: Lane, num_texts: int) -> None:
        """Leave a place, and let in who waits for it."""
        self.inside[lane] -= num_texts
        if self._waiting:
            self._let_in()

    def _has_place(self, num_texts: int) -> bool:
        inside = self.inside[Lane.BULK]
        return not inside or inside + num_texts <= self._options.max_bulk_texts

    async def _wait(self, num_texts: int) -> None:
        if len(self._waiting) >= self._options.max_waiting_requests:
            raise self._rejected("texts")
        waiting = _Waiting(num_texts, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.waiting_texts += num_texts
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the turn.
            await asyncio.wait({waiting.turn}, timeout=self._options.max_wait_seconds)
            if waiting.turn.done():
                return
            raise self._rejected("texts")
        except BaseException:
            if waiting.turn.done():  # it was let in, and its task is cancelled
                self.inside[Lane.BULK] -= num_texts
            else:
                waiting.turn.cancel()
                self._waiting.remove(waiting)
                self.waiting_texts -= num_texts
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self._has_place(self._waiting[0].num_texts):
            first = self._waiting.popleft()
            self.waiting_texts -= first.num_texts
            self.inside[Lane.BULK] += first.num_texts  # its place, until its task runs
            first.turn.set_result(None)

    def _rejected(self, what: str) -> HTTPError:
        self.num_rejected += 1
        seconds = self.seconds_of_work or 1.0
        return HTTPError.overloaded(
            f"the model has {what} for {seconds:.1f} seconds; come again then", seconds
        )
