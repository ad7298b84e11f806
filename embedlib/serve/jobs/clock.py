"""Clock: the time, and waiting for it; handed in, so that tests need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import time


@dataclass(frozen=True)
class Clock:
    """Unix time, and how to wait."""

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
