"""A thread that makes every call to a destination, one after the other."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from embedlib.errors import ClosedError
from embedlib.indexing.sinks.protocol import Sink
from embedlib.threads.starting import starting_threads

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
        """Start the thread; the name is only for messages and debuggers.

        Raises:
            PassingBuildError: no thread can be started.
        """
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._is_ending = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with starting_threads():
            self._thread.start()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call; the future gets its result or its exception.

        Raises:
            ClosedError: it is ending, or was started before a fork and this is the child. If it
                ends at the same moment, the future gets this error.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this destination was opened in process {self._pid} and this is its forked child "
                f"{os.getpid()}; open it there, or start the child with 'spawn'"
            )
        if self._is_ending:
            raise _closed()
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        # No lock, which a signal handler or the garbage collector could find taken: what is put
        # after this flag was set is failed here, and what was put before it by the thread.
        if self._has_ended:
            self._fail_queued()
        return future

    def end(self, last: Callable[[], object] | None = None) -> Future[Any] | None:
        """Refuse further calls, and end the thread after the queued ones; does not wait for it.

        Args:
            last: called on the thread after them.

        Returns:
            the future of `last`; None: it is not called, since there is none, the thread is ending
            already, or this is a forked child, which does not have the thread.
        """
        if self._is_ending or os.getpid() != self._pid:
            return None
        self._is_ending = True
        future: Future[Any] | None = None
        if last is not None:
            future = Future()
            self._calls.put((future, last))
        self._calls.put(None)
        return future

    def close(self, timeout_s: float | None) -> bool:
        """End the thread after the queued calls; return False if they take longer than this."""
        if os.getpid() != self._pid:
            return True
        self.end()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _make(*call)
            del call  # it holds the destination and what it returned
        self._has_ended = True
        self._fail_queued()

    def _fail_queued(self) -> None:
        """Fail what was queued behind the end."""
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None and call[0].set_running_or_notify_cancel():
                call[0].set_exception(_closed())


def _make(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        with starting_threads():  # those of the destination
            future.set_result(function())
    except BaseException as error:  # the future raises it in the thread that waits
        future.set_exception(error)
        del future, function  # the error's traceback holds this frame


def _closed() -> ClosedError:
    return ClosedError("this destination is closed; open it again")


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
