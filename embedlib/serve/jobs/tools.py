"""What the parts that run jobs share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import time
from typing import TypeVar

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.answers import Answerer
from embedlib.serve.jobs.batches import BatchStore
from embedlib.serve.jobs.files import FileStore
from embedlib.serve.jobs.folder import DataFolder
from embedlib.serve.jobs.metrics import JobMetrics
from embedlib.serve.jobs.requests import RequestStore
from embedlib.serve.jobs.spans import WriteSpan
from embedlib.serve.jobs.thread import StoreThread
from embedlib.serve.jobs.webhook import Policy
from embedlib.serve.options import ServeOptions

T = TypeVar("T")

log = logging.getLogger("embedlib.serve.jobs")

DISK_SECONDS = 5.0
"""Before something is read or written again that the disk refused."""


@dataclass(frozen=True)
class Clock:
    """Unix time, and how to wait; handed in, so that tests need not wait."""

    now: Callable[[], float] = time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until an event is set, for some seconds at most."""
        waits = {
            asyncio.ensure_future(event.wait()),
            asyncio.ensure_future(self.sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The stores, their thread, and who answers."""

    folder: DataFolder
    files: FileStore
    batches: BatchStore
    requests: RequestStore
    thread: StoreThread
    options: ServeOptions
    answer: Answerer
    clock: Clock
    metrics: JobMetrics
    policy: Policy
    """Where webhooks may go."""
    write_span: WriteSpan

    async def read(self, work: Callable[[], T]) -> T:
        """Return what a function returns that writes nothing; while the disk refuses, try again."""
        return await self._patiently(lambda: self.thread.run(work))

    async def write(self, work: Callable[[], T]) -> T:
        """Return what a function returns, once all that it wrote is on disk; it may run again."""
        return await self._patiently(lambda: self.thread.write(work))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        is_blocked = False
        try:
            while True:
                try:
                    return await work()
                except HTTPError as error:
                    if error.kind != "disk_full":
                        raise
                    if not self.metrics.num_blocked:
                        what = error.__cause__ or error
                        log.error("jobs wait for the disk of --data-dir: %s", what)
                    self.metrics.num_blocked += not is_blocked
                    is_blocked = True
                await self.clock.sleep(DISK_SECONDS)
        finally:
            self.metrics.num_blocked -= is_blocked
