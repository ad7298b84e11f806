"""`embedlib.index`: read, chunk, skip what is unchanged, embed, write; all of it at the same time.

Two threads besides the Embedder's own. `embedlib-reader` reads and chunks ahead. `embedlib-sink`
makes every call to the destination, so that a sink need not be thread-safe. The caller's thread
moves rows between them and the Embedder. What waits anywhere is bounded, so the slowest of the
three sets the pace, and that should be embedding.

The destination row is the checkpoint: its id follows from document and chunk number, its digest
from text, metadata and model. A run asks for the digests, embeds what differs and writes each batch
in one step. Killed at any instant, the next run finds what was written and does the rest. So texts
are embedded at least once, and the effect is that of once.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from operator import length_hint
from typing import Any
from uuid import UUID

import numpy as np

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, EngineRunError, InputError, SinkError
from embedlib.indexing.chunking import Chunker
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.reader import BadRows, Group, Reader
from embedlib.indexing.report import IndexProgress, IndexReport
from embedlib.indexing.rows import BadRow, Document, Row, has_same_content
from embedlib.indexing.seen import Seen
from embedlib.indexing.sink_thread import SinkThread
from embedlib.indexing.sinks import Sink, Target, Tell, Vectors, check_target, open_sink
from embedlib.indexing.sources import SourceOptions, open_source

MAX_CHUNK_TOKENS = 512
"""Chunks of models with a longer limit: a longer text says too much for one vector."""

_JOBS = 4
"""Jobs a batch is divided into: some are being written while the engine works on the others."""
_LOOKUPS = 2
_WRITES = 2
"""Calls to the destination under way, each kind; more would only wait there."""
_DELETE_ROWS = 1024
_SAMPLE_ROWS = 256
_INTERRUPTED_SECONDS = 2.0
"""How long an interrupted load waits for the call to the destination that is under way."""


def _ignore(_: object) -> None:
    pass


def index(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Document | BadRow],
    sink: str | Sink,
    *,
    embedder: Embedder,
    source_options: SourceOptions | None = None,
    tell: Tell = _ignore,
    on_progress: Callable[[IndexProgress], None] = _ignore,
    **options: Any,
) -> IndexReport:
    """Load a destination with the vectors of a source; run it again to bring it up to date.

    Args:
        source: a file, a folder or several; or any iterable of `Document`.
        sink: a URL such as "edge:PATH" or "postgresql://host/db?table=docs", or a `Sink`, which is
            closed at the end.
        embedder: makes the vectors, with its prompt for documents.
        source_options: how files are read.
        tell: gets lines for the user: guesses, rows left out, retries, the index build. May be
            called from any thread.
        on_progress: called after every step, on the caller's thread.
        **options: fields of `IndexOptions`.

    Returns:
        what was done.

    Raises:
        ConfigError: an option is unknown or out of range.
        SourceError: the source cannot be read, or has a bad row with on_error="stop".
        SinkError: the destination cannot be used, holds something else, or is being written.
        EngineRunError: no text of a batch could be embedded.
    """
    settings = IndexOptions.from_options(options)
    started = time.perf_counter()
    documents = _open(source, source_options or SourceOptions(), tell)
    chunker = _make_chunker(embedder, settings)
    seen = Seen()
    bad_rows = BadRows(settings.errors_file, tell, stops=settings.on_error == "stop")
    try:
        load = _Load(
            embedder,
            open_sink(sink) if isinstance(sink, str) else sink,
            settings,
            tell,
            on_progress,
            length_hint(documents) or None,
        )
        with load:
            reader = Reader(
                documents,
                chunker,
                load.fingerprint,
                seen,
                bad_rows,
                limit=settings.limit,
                shard=settings.part,
            )
            try:
                load.run(reader, seen, bad_rows)
            finally:
                reader.close()
            return load.report(bad_rows.num_rows, time.perf_counter() - started)
    finally:
        bad_rows.close()
        seen.close()


def _open(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Document | BadRow],
    options: SourceOptions,
    tell: Tell,
) -> Iterable[Document | BadRow]:
    if isinstance(source, (str, os.PathLike)):
        return open_source([os.fspath(source)], options, tell)
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, os.PathLike)):
        return open_source([os.fspath(item) for item in source], options, tell)
    return source  # type: ignore[return-value]


def _make_chunker(embedder: Embedder, options: IndexOptions) -> Chunker | None:
    if not options.chunk:
        return None
    room = embedder.count_room("document")
    num_tokens = options.chunk_tokens or min(room, MAX_CHUNK_TOKENS)
    if num_tokens > room:
        raise ConfigError(
            f"chunk_tokens = {num_tokens}; the model has room for {room} tokens of text"
        )
    return Chunker(embedder.tokenizer, num_tokens, options.chunk_overlap)


class _Load:
    """One run: what is under way, and what was done."""

    def __init__(
        self,
        embedder: Embedder,
        sink: Sink,
        options: IndexOptions,
        tell: Tell,
        on_progress: Callable[[IndexProgress], None],
        total_documents: int | None,
    ) -> None:
        self.fingerprint = embedder.fingerprint
        self._embedder = embedder
        self._sink = sink
        self._options = options
        self._tell = tell
        self._on_progress = on_progress
        self._total_documents = total_documents
        self._stats_before = embedder.stats()
        self._is_dry = options.dry_run
        self._has_stored_rows = True
        # Rows go through these in order; each is bounded.
        self._lookups: deque[tuple[Group, Future[dict[UUID, bytes]]]] = deque()
        self._new_rows: list[Row] = []
        self._jobs: deque[tuple[list[Row], Future[Vectors]]] = deque()
        self._writes: deque[tuple[int, Future[None]]] = deque()
        self._num_unwritten = 0
        self._job_rows = max(1, options.batch_rows // _JOBS)
        # Documents are done when so many rows are written.
        self._document_ends: deque[tuple[int, int]] = deque()
        self._num_to_write = self._num_written = self._num_documents_done = 0
        # For the report.
        self._num_documents = self._num_rows = self._num_unchanged = self._num_metadata = 0
        self._num_embedded = self._num_deleted = self._num_tokens = 0
        self._sample: list[str] = []
        self._estimated_seconds: float | None = None
        self._thread = SinkThread()

    def __enter__(self) -> _Load:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for _rows, job in self._jobs:
            job.cancel()
        for _num_rows, write in self._writes:
            write.cancel()
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        closing = self._thread.submit(self._sink.close)
        if self._thread.close(_INTERRUPTED_SECONDS if is_interrupt else None):
            closing.result()

    def run(self, reader: Reader, seen: Seen, bad_rows: BadRows) -> None:
        """Load everything the reader gives."""
        self._bad_rows = bad_rows
        self._begin()
        for group in reader.groups(self._work):
            self._look_up(group)
        while self._work():
            pass
        if self._options.delete_missing:
            self._delete_missing(seen)
        if self._is_dry:
            self._estimate()
        else:
            self._thread.submit(self._sink.finish).result()

    def _begin(self) -> None:
        name = self._embedder.model_name
        target = Target(
            dim=self._embedder.get_embedding_dimension(),
            similarity=self._embedder.similarity_fn_name,
            fingerprint=self.fingerprint,
            # A search may be started elsewhere.
            model=os.path.abspath(name) if os.path.isdir(name) else name,
            recreate=self._options.recreate,
            shard=self._options.shard,
        )
        if not self._is_dry:
            self._thread.submit(self._sink.begin, target, self._tell).result()
            return
        state = self._thread.submit(self._sink.inspect).result()
        check_target(state, target, self._sink.name)
        self._has_stored_rows = state is not None and not target.recreate

    def _work(self) -> bool:
        """Do the next piece of what is under way; False when there is nothing."""
        if self._lookups:
            self._sort_out(*self._lookups.popleft())
        elif self._new_rows:
            self._start_job(self._new_rows)
            self._new_rows = []
        elif self._jobs:
            self._write_oldest_job()
        elif self._writes:
            self._wait_for_write()
        else:
            return False
        return True

    def _look_up(self, group: Group) -> None:
        if self._has_stored_rows:
            lookup = self._thread.submit(self._sink.digests, [row.id for row in group.rows])
        else:
            lookup = Future[dict[UUID, bytes]]()
            lookup.set_result({})
        self._lookups.append((group, lookup))
        if len(self._lookups) > _LOOKUPS:
            self._sort_out(*self._lookups.popleft())

    def _sort_out(self, group: Group, lookup: Future[dict[UUID, bytes]]) -> None:
        """Find out what each row of a group needs."""
        stored = lookup.result()
        changed, metadata = list[Row](), list[Row]()
        for row in group.rows:
            digest = stored.get(row.id)
            if digest is None or not has_same_content(digest, row.digest):
                changed.append(row)
            elif digest != row.digest:
                metadata.append(row)
        self._num_documents += group.num_documents
        self._num_rows += len(group.rows)
        self._num_unchanged += len(group.rows) - len(changed) - len(metadata)
        self._num_metadata += len(metadata)
        self._num_to_write += len(changed)
        self._document_ends.append((self._num_to_write, group.num_documents))
        if self._is_dry:
            self._note(changed)
            return
        if metadata:
            write = self._thread.submit(self._sink.write_metadata, metadata)
            self._writes.append((0, write))
        self._new_rows += changed
        while len(self._new_rows) >= self._job_rows:
            self._start_job(self._new_rows[: self._job_rows])
            del self._new_rows[: self._job_rows]
        self._report_progress()

    def _start_job(self, rows: list[Row]) -> None:
        """Have rows embedded, once the number of rows on their way allows it."""
        while self._num_unwritten + len(rows) > self._options.batch_rows:
            if self._jobs:
                self._write_oldest_job()
            else:
                self._wait_for_write()
        self._jobs.append((rows, self._embed(rows)))
        self._num_unwritten += len(rows)

    def _write_oldest_job(self) -> None:
        """Wait for the oldest job and write it, with those after it that are done as well."""
        written: list[Row] = []
        parts: list[Vectors] = []
        num_rows = 0
        while self._jobs and (num_rows == 0 or self._jobs[0][1].done()):
            rows, job = self._jobs.popleft()
            num_rows += len(rows)
            try:
                parts.append(job.result())
                written += rows
            except (InputError, EngineRunError) as error:
                good, vectors = self._embed_again(rows, error)
                parts.append(vectors)
                written += good
        self._num_embedded += len(written)
        if len(self._writes) >= _WRITES:
            self._wait_for_write()
        write = self._thread.submit(self._sink.write, written, np.concatenate(parts))
        self._writes.append((num_rows, write))
        while self._writes and self._writes[0][1].done():
            self._wait_for_write()

    def _embed_again(self, rows: list[Row], error: Exception) -> tuple[list[Row], Vectors]:
        """Embed what can be embedded of a job that failed; the rest are bad rows.

        Raises:
            EngineRunError, InputError: not one of them can; it is not the rows' fault.
        """
        good, vectors, bad = list[Row](), list[Vectors](), list[BadRow]()
        parts = [(rows, error)]
        while parts:
            part, reason = parts.pop()
            if len(part) == 1:
                place = f"{part[0].source_id!r}, chunk {part[0].chunk}"
                bad.append(BadRow(place=place, reason=str(reason), id=part[0].source_id))
                continue
            for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                try:
                    vectors.append(self._embed(half).result())
                    good += half
                except (InputError, EngineRunError) as still:
                    parts.append((half, still))
        if not good and len(rows) > 1:
            raise error
        for row in bad:
            self._bad_rows.add(row)
        return good, np.concatenate(vectors or [self._no_vectors()])

    def _embed(self, rows: list[Row]) -> Future[Vectors]:
        return self._embedder.submit_batch([row.text for row in rows], task="document")

    def _no_vectors(self) -> Vectors:
        return np.empty((0, self._embedder.get_embedding_dimension()), np.float32)

    def _wait_for_write(self) -> None:
        num_rows, write = self._writes.popleft()
        write.result()
        self._num_unwritten -= num_rows
        self._num_written += num_rows
        self._report_progress()

    def _report_progress(self) -> None:
        while self._document_ends and self._document_ends[0][0] <= self._num_written:
            self._num_documents_done += self._document_ends.popleft()[1]
        self._on_progress(
            IndexProgress(
                num_documents=self._num_documents_done,
                total_documents=self._total_documents,
                num_embedded=self._num_written,
                num_unchanged=self._num_unchanged,
            )
        )

    def _delete_missing(self, seen: Seen) -> None:
        """Remove rows that the source has no more, once it was read to its end.

        Raises:
            SinkError: it would be too many; nothing is removed.
        """
        if self._bad_rows.has_unnamed:
            self._tell(
                "nothing is deleted: some bad rows have no id, and rows of theirs may be stored; "
                "correct the source and run again"
            )
            return
        if not self._has_stored_rows:
            return
        missing, num_stored = self._thread.submit(self._find_missing, seen).result()
        if len(missing) > self._options.max_delete * num_stored:
            raise SinkError(
                f"{self._sink.name}: the source lacks {len(missing)} of {num_stored} rows, more "
                f"than the share max_delete = {self._options.max_delete:g}; nothing was deleted; "
                "look at the source, or raise --max-delete"
            )
        self._num_deleted = len(missing)
        if not self._is_dry:
            for start in range(0, len(missing), _DELETE_ROWS):
                part = missing[start : start + _DELETE_ROWS]
                self._thread.submit(self._sink.delete, part).result()

    def _find_missing(self, seen: Seen) -> tuple[list[UUID], int]:
        part = self._options.part
        missing, num_stored = list[UUID](), 0
        for key in self._sink.scan():
            if part is None or part.has(key.source_id):
                num_stored += 1
                if not seen.has(key.source_id, key.chunk):
                    missing.append(key.id)
        return missing, num_stored

    def _note(self, rows: list[Row]) -> None:
        """Count what a dry run would embed."""
        texts = [row.text for row in rows]
        self._sample += texts[: _SAMPLE_ROWS - len(self._sample)]
        encoded = self._embedder.tokenizer.encode_batch_fast(texts)
        self._num_tokens += sum(min(len(item), self._embedder.max_seq_length) for item in encoded)
        self._num_written = self._num_to_write
        self._report_progress()

    def _estimate(self) -> None:
        if not self._sample:
            return
        before, started = self._embedder.stats().num_tokens, time.perf_counter()
        self._embedder.submit_batch(self._sample, task="document").result()
        seconds = time.perf_counter() - started
        num_tokens = self._embedder.stats().num_tokens - before
        self._estimated_seconds = self._num_tokens * seconds / num_tokens

    def report(self, num_bad: int, seconds: float) -> IndexReport:
        """Return what was done."""
        stats, before = self._embedder.stats(), self._stats_before
        return IndexReport(
            num_documents=self._num_documents,
            num_rows=self._num_rows,
            num_embedded=self._num_to_write if self._is_dry else self._num_embedded,
            num_unchanged=self._num_unchanged,
            num_metadata=self._num_metadata,
            num_deleted=self._num_deleted,
            num_bad=num_bad,
            num_truncated=0 if self._is_dry else stats.num_truncated - before.num_truncated,
            num_tokens=self._num_tokens or stats.num_tokens - before.num_tokens,
            seconds=seconds,
            estimated_seconds=self._estimated_seconds,
        )
