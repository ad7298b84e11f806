"""A thread that makes every call to a destination, one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from embedlib.indexing.sinks.protocol import Sink

_INTERRUPTED_SECONDS = 2.0
"""How long an interrupted load waits for the running call to the destination."""

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]


class SinkThread:
    """Runs calls on one thread, in the order of `submit`.

    It is a daemon thread, unlike those of an executor: a database that does not answer must not
    keep a program from ending, and a load may be killed at any instant anyway.
    """

    def __init__(self, name: str = "embedlib-sink") -> None:
        """Start the thread; the name is only for messages and debuggers."""
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call; the future gets its result or its exception."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return future

    def close(self, timeout_s: float | None) -> bool:
        """End the thread after the queued calls; return False if they take longer than this."""
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
            except BaseException as error:  # the future raises it in the thread that waits
                future.set_exception(error)


@contextmanager
def running_thread(sink: Sink) -> Iterator[SinkThread]:
    """Run the thread that makes the calls to a sink; its last call closes the sink."""
    thread = SinkThread()
    try:
        yield thread
    except BaseException as error:
        # After Ctrl-C: a database that builds an index may take minutes to answer.
        timeout_s = None if isinstance(error, Exception) else _INTERRUPTED_SECONDS
        thread.submit(sink.close)  # if this fails too, the first error is the one to report
        thread.close(timeout_s)
        raise
    closed = thread.submit(sink.close)
    thread.close(None)
    closed.result()
