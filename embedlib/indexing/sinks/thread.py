"""The thread `embedlib-sink`: every call to a destination, one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]


class SinkThread:
    """Runs calls in their order.

    A daemon, unlike the threads of an executor: a database that does not answer must not keep a
    program from ending, and a load may be killed at any instant anyway.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="embedlib-sink", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function after all that came before; its result or error is in the future."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return future

    def close(self, timeout_s: float | None) -> bool:
        """End after the calls that came before; False if they take longer than that."""
        self._calls.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # it belongs to who waits for it
                future.set_exception(error)
