"""`embedlib.aindex`: a bulk load that an event loop waits for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from embedlib.errors import PassingBuildError, SourceError
from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder
from embedlib.indexing.pipeline import index
from embedlib.indexing.preparing import check_arguments
from embedlib.indexing.report import IndexProgress, IndexReport
from embedlib.indexing.sinks.protocol import Sink, Tell, tell_nobody
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sources.items import SourceItem
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.tables import ArrowTable
from embedlib.threads.closing import wait_left_behind

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.indexing.signatures import LoadOptions

STOP_SECONDS: Final = 10.0
"""Longest wait of a cancelled task for its load, which ends at its next step: mostly half a second.
A source or a database that does not answer may take longer; then the load ends by itself."""
_END: Final = object()


async def aindex(
    source: str | os.PathLike[str] | Iterable[SourceItem] | AsyncIterable[SourceItem] | ArrowTable,
    sink: str | Sink,
    *,
    embedder: TextEmbedder | str,
    sparse: SparseEmbedder | None = None,
    source_options: SourceOptions | None = None,
    tell: Tell | None = None,
    on_progress: Callable[[IndexProgress], None] | None = None,
    ray: str | None = None,
    ray_workers: int | None = None,
    **options: Unpack[LoadOptions],
) -> IndexReport:
    """Do what `index` does without blocking the event loop; the load has a thread of its own.

    Cancelling the task ends the load at its next step, half a second at most while it embeds: texts
    that are not being computed are dropped, what was written stays, and the same call goes on from
    there. The task ends when the destination is closed, after 10 seconds at the latest.

    Args:
        source: what `index` takes, or an asynchronous iterable of documents or dicts, which is read
            on the event loop, one document at a time.
        sink: a URL or a `Sink`.
        embedder: as in `index`.
        sparse: as in `index`.
        source_options: how files and rows are read.
        tell: called with lines for the user, from other threads.
        on_progress: called with `IndexProgress`, on the thread of the load.
        ray: address of a Ray cluster.
        ray_workers: how many of its workers.
        **options: fields of `IndexOptions`.

    Returns:
        counts of what was done.

    Raises:
        what `index` raises.
    """
    is_cancelled = False
    told = tell_nobody if on_progress is None else on_progress
    check_arguments(source_options, tell, told)  # `index` gets another function

    def go_on(progress: IndexProgress) -> None:
        if is_cancelled:
            raise _Stopped
        told(progress)

    items = _Items(aiter(source)) if isinstance(source, AsyncIterable) else None
    try:
        thread = SinkThread("embedlib-index")
    except PassingBuildError as error:  # the program is ending
        await wait_left_behind(error)
        raise
    load = asyncio.wrap_future(
        thread.submit(
            index,
            items or source,  # type: ignore[arg-type] # an asynchronous one was replaced
            sink,
            embedder=embedder,
            sparse=sparse,
            source_options=source_options,
            tell=tell,
            on_progress=go_on,
            ray=ray,
            ray_workers=ray_workers,
            **options,
        )
    )
    thread.close(0)  # it ends after the load
    try:
        return await asyncio.shield(load)
    except asyncio.CancelledError:
        is_cancelled = True
        if items is not None:
            items.cancel()
        try:
            await asyncio.wait({load}, timeout=STOP_SECONDS)
        finally:
            load.cancel()  # nobody asks how it ends
        raise
    finally:
        if items is not None:
            await items.close()


class _Stopped(BaseException):
    """Ends a load whose task was cancelled, as Ctrl-C ends one."""


class _Items:
    """Documents that an event loop reads, for the thread of the load that asks for them."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the documents; called on the load's thread."""
        while not self._is_closed:  # else the loop may have ended
            item = asyncio.run_coroutine_threadsafe(self._take(), self._loop).result()
            if item is _END:
                return
            yield item
        raise _Stopped

    async def _take(self) -> Any:
        if self._is_closed:
            raise _Stopped
        self._task = asyncio.current_task()
        try:
            return await anext(self._items, _END)
        except asyncio.CancelledError as error:
            if self._is_closed:
                raise _Stopped from None
            raise SourceError("the source was cancelled while it was read") from error

    def cancel(self) -> None:
        """Let the load's thread wait for no document any more; called on the event loop."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Close the iterable, as `async for` does not; called on the event loop."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
        if hasattr(self._items, "aclose"):
            await self._items.aclose()
