"""The writing half of a bulk load: takes groups of rows, writes rows with vectors."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import cast
from uuid import UUID

import numpy as np

from embedlib.errors import EngineRunError, InputError
from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder
from embedlib.indexing.reader import Group
from embedlib.indexing.report import Tally
from embedlib.indexing.row_jobs import Embedded, RowJob, end_of_window
from embedlib.indexing.rows import BadRow, Row, find_changes
from embedlib.indexing.sinks.abilities import SparseSink
from embedlib.indexing.sinks.protocol import Sink, UnstorableRowsError
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.vectors.arrays import Vectors

_JOBS = 4
"""Jobs per limit of rows in flight: some are written while the engine works on the others."""
_FIRST_ROWS = 8
"""Rows in flight at first; each row written adds one, up to `batch_rows`. A load that is killed
after seconds has then written rows, also if its texts are long and the cores busy: the first write
waits for two texts. With `batch_rows` in flight many would end together, because
the batches of up to 1,024 texts are sorted by length."""
_LOOKUPS = 2
_WRITES = 2
"""Queued calls to the destination, of each kind; more would only wait there."""
LOOK_SECONDS = 0.5
"""Time between two progress reports while a batch is computed."""


class Load:
    """Moves rows through three stages, each bounded and in order: look up, embed, write.

    Every method runs on the caller's thread and does a small step, while the engine and the sink
    thread work in the background. At most `batch_rows` rows are submitted and not yet written,
    fewer at the beginning; of late chunking at least those of one window.
    """

    def __init__(
        self,
        embedder: TextEmbedder,
        sink: Sink,
        thread: SinkThread,
        bad_rows: BadRows,
        tally: Tally,
        batch_rows: int,
        first_rows: int = _FIRST_ROWS,
        sparse: SparseEmbedder | None = None,
    ) -> None:
        self._embedder = embedder
        self._sparse = sparse
        self._sink = sink
        self._thread = thread
        self._bad_rows = bad_rows
        self._tally = tally
        self._batch_rows = batch_rows
        self._limit = min(batch_rows, first_rows)
        self._lookups: deque[tuple[Group, Future[dict[UUID, bytes]]]] = deque()
        self._changed: list[Row] = []
        self._jobs: deque[tuple[list[Row], RowJob]] = deque()
        self._writes: deque[tuple[int, int, Future[None]]] = deque()
        self._num_unwritten = 0

    def add(self, group: Group) -> None:
        """Accept a group of rows; blocks while too many groups are being looked up."""
        ids = [row.id for row in group.rows]
        self._lookups.append((group, self._thread.submit(self._sink.digests, ids)))
        if len(self._lookups) > _LOOKUPS:
            self._compare_oldest()

    def work(self) -> bool:
        """Move the oldest rows one stage further; False if there are none."""
        if self._lookups:
            self._compare_oldest()
        elif self._changed:
            self._start_job(self._changed)
            self._changed = []
        elif self._jobs:
            self._write_oldest()
        elif self._writes:
            self._wait_for_write()
        else:
            return False
        return True

    def end(self) -> None:
        """Write the last rows; called once, after the last group."""
        while self.work():
            pass

    def cancel(self) -> None:
        """Cancel what has not started to be computed or written."""
        for _, job in self._jobs:
            job.cancel()
        for _, _, write in self._writes:
            write.cancel()

    def _compare_oldest(self) -> None:
        group, lookup = self._lookups.popleft()
        changes = find_changes(group.rows, lookup.result())
        self._tally.add(changes, group.num_documents)
        if changes.to_update:
            self._make_room_for_a_write()
            write = self._thread.submit(self._sink.write_metadata, changes.to_update)
            self._writes.append((0, 0, write))
        self._changed += changes.to_embed
        while len(self._changed) >= (job_rows := max(1, self._limit // _JOBS)):
            end = end_of_window(self._changed, job_rows)
            self._start_job(self._changed[:end])
            del self._changed[:end]

    def _start_job(self, rows: list[Row]) -> None:
        """Submit rows to the embedder, after enough earlier ones are written."""
        while self._num_unwritten and self._num_unwritten + len(rows) > self._limit:
            if self._jobs:
                self._write_oldest()
            else:
                self._wait_for_write()
        self._jobs.append((rows, self._embed(rows)))
        self._num_unwritten += len(rows)

    def _embed(self, rows: list[Row]) -> RowJob:
        return RowJob(rows, self._embedder, self._sparse)

    def _write_oldest(self) -> None:
        """Wait for the oldest job, then write it together with the next ones that are done."""
        rows, parts = list[Row](), list[Embedded]()
        num_rows = 0
        while self._jobs and (num_rows == 0 or self._jobs[0][1].done()):
            job_rows, job = self._jobs.popleft()
            num_rows += len(job_rows)
            try:
                parts.append(self._wait_for(job))
                rows += job_rows
            except (InputError, EngineRunError) as error:
                good, good_parts = self._embed_again(job_rows, error)
                rows += good
                parts += good_parts
        self._make_room_for_a_write()
        self._writes.append((num_rows, len(rows), self._write(rows, parts)))
        while self._writes and self._writes[0][2].done():
            self._wait_for_write()

    def _write(self, rows: list[Row], parts: list[Embedded]) -> Future[None]:
        dim = self._embedder.get_embedding_dimension()
        vectors = np.empty((0, dim), np.float32)
        if parts:
            vectors = join_vectors([part.vectors for part in parts])
        if self._sparse is None:
            return self._thread.submit(self._sink.write, rows, vectors)
        weights = [weights for part in parts for weights in part.weights or ()]
        sink = cast(SparseSink, self._sink)
        return self._thread.submit(sink.write_both, rows, vectors, weights)

    def _wait_for(self, job: RowJob) -> Embedded:
        """Return what a job made; tells meanwhile what is embedded of the jobs in flight."""
        while wait(job.jobs, timeout=LOOK_SECONDS).not_done:
            self._tally.look()
        return job.result()

    def _embed_again(self, rows: list[Row], error: Exception) -> tuple[list[Row], list[Embedded]]:
        """Halve a failed job until every row is embedded or known to be bad.

        Raises:
            EngineRunError: no row can be embedded, so the rows are not the cause.
        """
        good, vectors, bad = list[Row](), list[Embedded](), list[BadRow]()
        failure: EngineRunError | None = None
        parts = [(rows, error)]
        while parts:
            part, reason = parts.pop()
            if len(part) == 1:
                if isinstance(reason, EngineRunError):
                    failure = failure or reason
                bad.append(part[0].bad_row(str(reason)))
                continue
            for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                try:
                    vectors.append(self._embed(half).result())
                    good += half
                except (InputError, EngineRunError) as still:
                    parts.append((half, still))
        # Refused texts are to blame themselves, even if all of a job are: chunks of one document.
        if failure is not None and not good and (len(rows) > 1 or not self._embeds_others(rows[0])):
            raise failure
        for row in bad:
            self._bad_rows.add(row)
        return good, vectors

    def _embeds_others(self, row: Row) -> bool:
        """Whether the engine embeds another text, so that it is this row that it cannot embed."""
        try:
            self._embed([replace(row, text="a", embedded=None, span=None)]).result()
        except (InputError, EngineRunError):
            return False
        return True

    def _make_room_for_a_write(self) -> None:
        while len(self._writes) >= _WRITES:
            self._wait_for_write()

    def _wait_for_write(self) -> None:
        num_rows, num_written, write = self._writes.popleft()
        try:
            write.result()
        except UnstorableRowsError as error:
            for bad in error.bad_rows:
                self._bad_rows.add(bad)
            if num_rows:
                num_written -= len(error.bad_rows)
            else:
                self._tally.refused_metadata(len(error.bad_rows))
        self._num_unwritten -= num_rows
        self._limit = min(self._batch_rows, self._limit + num_rows)
        self._tally.done(num_rows, num_written)


def join_vectors(parts: list[Vectors]) -> Vectors:
    """Return the vectors of several jobs; of texts with a vector per token, a list of arrays."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return cast(Vectors, [row for part in parts for row in part])
