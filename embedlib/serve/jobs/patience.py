"""Trying again what the disk did not take: nothing is lost, jobs wait until it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.tools import Tools, log

T = TypeVar("T")

DISK_SECONDS = 5.0
"""Before something is read or written again that the disk refused."""


async def read_patiently(tools: Tools, work: Callable[[], T]) -> T:
    """Return what a function returns that writes nothing; while the disk refuses, try again."""
    return await _patiently(tools, lambda: tools.thread.run(work))


async def write_patiently(tools: Tools, work: Callable[[], T]) -> T:
    """Return what a function returns, once all that it wrote is on disk; it may run again."""
    return await _patiently(tools, lambda: tools.thread.write(work))


async def _patiently(tools: Tools, work: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            found = await work()
        except Exception as error:
            if not (isinstance(error, HTTPError) and error.kind == "disk_full"):
                raise
            if not tools.metrics.is_blocked:
                log.error("jobs wait for the disk of --data-dir: %s", error.__cause__ or error)
            tools.metrics.is_blocked = True
            await tools.clock.sleep(DISK_SECONDS)
        else:
            tools.metrics.is_blocked = False
            return found
