"""The thread that loads models, or reads all of their weights: an end need not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from embedlib.errors import typed_line
from embedlib.threads.closing import WorkerThread


class Loader:
    """Runs one load after the other. One that runs cannot be ended, and may be a download."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._thread: WorkerThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether a load runs."""
        return self._thread is not None and self._thread.is_alive()

    async def run(self, load: Callable[[], None]) -> None:
        """Run a load, and wait for it. Cancelling leaves it running.

        Raises:
            EngineBuildError: no thread can be started.
            what `load` raises; RuntimeError: it raised what is no `Exception`.
        """
        over: Future[None] = Future()

        def run() -> None:
            if over.set_running_or_notify_cancel():
                try:
                    load()
                except Exception as error:
                    over.set_exception(error)
                except BaseException as error:  # of a library, as a panic: it is not the loop's end
                    failed = RuntimeError(typed_line(error))
                    failed.__cause__ = error
                    over.set_exception(failed)
                else:
                    over.set_result(None)

        self._thread = WorkerThread(run, "embedlib-serve-load")
        self._thread.start()
        try:
            await asyncio.wrap_future(over)
        finally:
            if over.done():  # it has nothing left to do, and no `join` would find it later
                self._thread.join()

    def join(self, seconds: float | None) -> None:
        """Wait for a load that runs, for some seconds; None: until it ends."""
        if self._thread is not None:
            self._thread.join(seconds)
