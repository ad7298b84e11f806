"""The way of rows through the workers of a cluster; the counterpart of `embedlib.indexing.load`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from uuid import UUID

import numpy as np

from embedlib.errors import EmbedlibError, EngineRunError
from embedlib.indexing import Row, Sink, UnstorableRowsError, Vectors
from embedlib.indexing.workers import (
    LOOK_SECONDS,
    BadRows,
    Group,
    RowChanges,
    SinkThread,
    Tally,
    find_changes,
)
from embedlib_ray.shards import WAITING_SHARDS, Shard, ShardCutter
from embedlib_ray.worker import Loaded

if TYPE_CHECKING:
    from embedlib_ray.pool import WorkerPool

MAX_FAILED = 10
"""Shards that may fail one after the other; then nothing works, and the load ends."""
_NAMED = 3
"""Failed shards that the last message names."""


@dataclass(eq=False)
class _Running:
    shard: Shard
    loaded: Future[Loaded] | None
    """None: no row of it has changed."""
    changes: RowChanges | None = None
    """What the driver found, where it writes."""


class ShardedLoad:
    """Gives shards to the workers, and counts what became of them.

    Where the workers write, this only counts. Otherwise this process looks rows up and writes them,
    in the order of the source, and the workers embed.
    """

    def __init__(
        self,
        pool: WorkerPool,
        sink: Sink | None,
        thread: SinkThread,
        bad_rows: BadRows,
        tally: Tally,
        *,
        batch_rows: int,
        num_workers: int,
        end_writing: Callable[[], None],
    ) -> None:
        """Start without rows.

        Args:
            pool: the workers.
            sink: what this process writes to; None: the workers write.
            thread: makes the calls to it.
            bad_rows: takes rows that cannot be embedded or stored.
            tally: counts.
            batch_rows: the most rows of each worker on their way.
            num_workers: how many there will be.
            end_writing: lets the workers give the destination up.
        """
        self._pool = pool
        self._sink = sink
        self._thread = thread
        self._bad_rows = bad_rows
        self._tally = tally
        self._end_writing = end_writing
        self._is_writing = True
        self._cutter = ShardCutter(batch_rows)
        self._room = WAITING_SHARDS * num_workers
        self._running: deque[_Running] = deque()
        self._failed: list[str] = []
        self._num_failed_rows = 0
        self._num_failed_in_a_row = 0

    def add(self, group: Group) -> None:
        """Accept a group of rows; blocks while the workers have enough."""
        for shard in self._cutter.add(group.rows, group.num_documents):
            self._begin(shard)

    def work(self) -> bool:
        """Take the result of a shard; False: none is on its way."""
        if not self._running:
            return False
        self._settle()
        return True

    def end(self) -> EngineRunError | None:
        """Wait for all shards; then the workers give the destination up.

        Returns:
            what names the shards that three workers failed with; all others are stored.
        """
        for shard in self._cutter.end():
            self._begin(shard)
        while self.work():
            pass
        self._stop_writing()
        return EngineRunError(self._describe_failed()) if self._failed else None

    def cancel(self) -> None:
        """Drop the shards that no worker has begun."""
        for running in self._running:
            if running.loaded is not None:
                running.loaded.cancel()
        if self._is_writing:  # the load has failed, and tells why
            with suppress(EmbedlibError):
                self._stop_writing()

    def _stop_writing(self) -> None:
        self._is_writing = False
        self._end_writing()

    def _begin(self, shard: Shard) -> None:
        while len(self._running) >= self._room:
            self._settle()
        if self._sink is None:
            self._running.append(_Running(shard, self._pool.submit("load", shard.rows)))
            return
        ids = [row.id for row in shard.rows]
        stored = self._thread.submit(self._sink.digests, ids).result()
        changes = find_changes(shard.rows, stored)
        future = self._pool.submit("embed_rows", changes.to_embed) if changes.to_embed else None
        self._running.append(_Running(shard, future, changes))

    def _settle(self) -> None:
        """Take the result of a shard: of the oldest if this process writes it, else of any."""
        if self._sink is None:
            by_future = {each.loaded: each for each in self._running if each.loaded is not None}
            running = by_future[self._wait_for_any(by_future)]
        else:
            running = self._running[0]
        self._running.remove(running)
        try:
            loaded = (
                None if running.loaded is None else self._wait_for_any([running.loaded]).result()
            )
        except EmbedlibError as error:
            self._failed.append(f"{running.shard}: {error}")
            self._num_failed_rows += len(running.shard.rows)
            self._num_failed_in_a_row += 1
            if self._num_failed_in_a_row >= MAX_FAILED:
                raise EngineRunError(self._describe_failed()) from error
            return
        self._num_failed_in_a_row = 0
        for bad in loaded.bad_rows if loaded else ():
            self._bad_rows.add(bad)
        if running.changes is not None:
            self._write(running.shard, running.changes, loaded)
        elif loaded is not None:
            self._tally.add_loaded(loaded.report, running.shard.num_documents)

    def _wait_for_any(self, futures: Iterable[Future[Loaded]]) -> Future[Loaded]:
        """Return one that is done."""
        while not (done := wait(futures, LOOK_SECONDS, FIRST_COMPLETED).done):
            self._tally.look()
        return done.pop()

    def _write(self, shard: Shard, changes: RowChanges, loaded: Loaded | None) -> None:
        """Write what the workers embedded, and metadata that alone changed."""
        self._tally.add(changes, shard.num_documents)
        num_rows = len(changes.to_embed)
        num_written = 0
        if loaded is not None and loaded.vectors is not None:
            rows, vectors = _in_order(changes.to_embed, loaded.ids, loaded.vectors)
            num_written = len(rows) - self._store(rows, vectors)
        if changes.to_update:
            self._tally.refused_metadata(self._store(changes.to_update, None))
        self._tally.done(num_rows, num_written)

    def _store(self, rows: list[Row], vectors: Vectors | None) -> int:
        """Write rows, or without vectors their metadata; return how many cannot be stored."""
        assert self._sink is not None, "the workers write"
        try:
            if vectors is not None:
                self._thread.submit(self._sink.write, rows, vectors).result()
            else:
                self._thread.submit(self._sink.write_metadata, rows).result()
        except UnstorableRowsError as error:
            for bad in error.bad_rows:
                self._bad_rows.add(bad)
            return len(error.bad_rows)
        return 0

    def _describe_failed(self) -> str:
        more = len(self._failed) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        return (
            f"{self._num_failed_rows} rows are not loaded, since three workers failed with them: "
            f"{'; '.join(self._failed[:_NAMED])}{rest}; run the same command again"
        )


def _in_order(rows: list[Row], ids: list[UUID], vectors: Vectors) -> tuple[list[Row], Vectors]:
    """Return the rows that were embedded in the order of the source, with their vectors.

    Args:
        rows: in that order.
        ids: of those that were embedded, in any order.
        vectors: of these.
    """
    place = {id_: index for index, id_ in enumerate(ids)}
    rows = [row for row in rows if row.id in place]
    order = [place[row.id] for row in rows]
    if isinstance(vectors, np.ndarray):
        return rows, vectors[order]
    return rows, cast(Vectors, [vectors[number] for number in order])  # a vector per token
