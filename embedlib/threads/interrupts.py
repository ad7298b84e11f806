"""A condition that a signal handler cannot leave taken, and how to tell its exceptions.

Python runs them on the main thread, between any two steps of Python code. An exception that one of
them raises, such as that of a time limit, then comes from the middle of the library.

Without a handler, a signal ends the process at once; SIGTERM can wait for the end of a block.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SafeCondition(threading.Condition):
    """A condition that an exception of a signal handler does not leave taken.

    `with` on a Condition runs its Python functions `__enter__` and `__exit__`, and an exception
    inside of them leaves it taken for ever. Here it runs those of the lock, which are C code. An
    exception while `with` looks them up comes before the lock is taken.
    """

    def __init__(self) -> None:
        """Create it with a lock of its own, which its thread may take again."""
        self._own = threading.RLock()
        super().__init__(self._own)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified or for so many seconds; return whether it was notified."""
        try:
            return super().wait(timeout)
        except BaseException:
            # It came between giving the lock back and taking it again, and `with` gives it back.
            if not self._is_owned():  # type: ignore[attr-defined] # typeshed lacks it
                self._own.acquire()
            raise

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._own.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._own.__exit__


@contextmanager
def sigterm_waits() -> Iterator[None]:
    """Let SIGTERM end the process only when the block has ended.

    That is so on the main thread, where Python lets handlers be set, and if the program has none.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    came: list[int] = []
    try:
        signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), signal.SIGTERM)


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised an error.

    Who wraps the errors of an engine or of a library must pass such a one on as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(handler) for handler in _handlers()}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in handlers:
            return True
        step = step.tb_next
    return False


def _handlers() -> Iterator[Any]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            yield handler


def _code_of(handler: Any) -> object:
    """Return the code of a function, a method, a partial or an object that can be called."""
    handler = getattr(handler, "func", handler)
    handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
