"""The reading half of a bulk load: its own thread turns documents into groups of rows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.document_checks import checked, place_of
from embedlib.indexing.options import Shard
from embedlib.indexing.rows import (
    BadRow,
    Chunk,
    CutDocuments,
    Document,
    Row,
    row_digest,
    row_id,
)
from embedlib.indexing.seen import Seen
from embedlib.threads.starting import starting_threads

GROUP_ROWS = 512
"""Maximum rows in a group; a group is smaller when the loader waits."""

_GROUP_DOCUMENTS = 128
"""Maximum documents chunked together: enough to use every core for tokenizing."""
_GROUP_CHARS = 1 << 22
"""So many are enough too, of one text even, and of rows: 128 books would fill the memory."""
_QUEUE_GROUPS = 4
_JOIN_SECONDS = 2.0


@dataclass
class Group:
    """Rows read together."""

    rows: list[Row] = field(default_factory=list)
    num_documents: int = 0
    """Documents whose rows end in this group."""


class Reader:
    """Reads a source ahead on the thread `embedlib-reader` and yields groups of rows.

    The order of rows is that of the source.
    """

    def __init__(
        self,
        source: Iterable[Document | BadRow],
        cut: CutDocuments,
        fingerprint: str,
        seen: Seen,
        bad_rows: BadRows,
        *,
        limit: int | None = None,
        shard: Shard | None = None,
    ) -> None:
        self._source = source
        self._cut = cut
        self._fingerprint = fingerprint
        self._seen = seen
        self._bad_rows = bad_rows
        self._limit = limit
        self._shard = shard
        self._queue: queue.Queue[Group | BaseException | None] = queue.Queue(_QUEUE_GROUPS)
        several = len(getattr(source, "input_paths", ())) > 1
        self._hint = ": id_prefix='file' (--id-prefix file) tells files apart" if several else ""
        self._first: Group | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="embedlib-reader", daemon=True)
        with starting_threads():
            self._thread.start()

    def has_rows(self) -> bool:
        """Wait for the first group, which `groups` yields later; False: there will be none.

        Raises:
            Exception: the one that was raised while reading.
        """
        self._first = next(self.groups(while_waiting=lambda: False), None)
        return self._first is not None

    def groups(self, while_waiting: Callable[[], bool]) -> Iterator[Group]:
        """Yield groups until the source ends.

        Args:
            while_waiting: called while no group is ready. It does one step of other work and
                returns True, or returns False if it has none; then this blocks for a group.

        Raises:
            Exception: the one that was raised while reading.
        """
        if self._first is not None:
            yield self._first
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                if while_waiting():
                    continue
                item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading and join the thread; a thread that waits for its source is left running."""
        self._is_stopped = True
        with suppress(queue.Empty):  # the thread may be blocked by a full queue
            while True:
                self._queue.get_nowait()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            for group in self._read():
                self._queue.put(group)
                if self._is_stopped:
                    return
            self._queue.put(None)
        except BaseException as error:  # `groups` raises it in the thread that waits
            self._queue.put(error)

    def _read(self) -> Iterator[Group]:
        group, waiting = Group(), list[Document]()
        num_waiting = num_grouped = 0  # of their characters
        for document in chain(self._documents(), [None]):
            if document is not None:
                waiting.append(document)
                num_waiting += len(document.text)
                is_small = len(waiting) < _GROUP_DOCUMENTS and num_waiting < _GROUP_CHARS
                # No timer: as soon as the loader has nothing left, it gets what was read so far.
                if is_small and not self._queue.empty():
                    continue
            for rows in self._rows(waiting):
                for row in rows:
                    if len(group.rows) == GROUP_ROWS or num_grouped >= _GROUP_CHARS:
                        yield group
                        group, num_grouped = Group(), 0
                    group.rows.append(row)
                    num_grouped += len(row.text)
                group.num_documents += bool(rows)  # a document without rows is a bad row
            waiting, num_waiting = [], 0
            if group.num_documents and (document is None or self._queue.empty()):
                yield group
                group, num_grouped = Group(), 0

    def _documents(self) -> Iterator[Document]:
        num_documents = 0
        for item in self._source:
            if self._is_stopped:
                return
            item = checked(item)
            if self._shard is not None and item.id is not None and not self._shard.has(item.id):
                continue
            if item.id is not None and not self._seen.add(item.id):
                reason = f"the id {item.id!r} was used before; ids must be unique{self._hint}"
                item = BadRow(place=place_of(item), reason=reason, id=item.id)
            if isinstance(item, BadRow):
                if item.file is not None:
                    self._seen.add_file(item.file)
                self._bad_rows.add(item)
                continue
            num_documents += 1
            yield item
            if num_documents == self._limit:  # the source is not asked for one more
                return

    def _rows(self, documents: list[Document]) -> Iterator[list[Row]]:
        for document, chunks in zip(documents, self._cut(documents), strict=True):
            if chunks:
                self._seen.set_num_chunks(document.id, len(chunks))
            else:
                reason = "has no token of the model, such as control characters only"
                self._bad_rows.add(BadRow(place=place_of(document), reason=reason, id=document.id))
            yield [
                self._row(document, number, chunk, len(chunks))
                for number, chunk in enumerate(chunks)
            ]

    def _row(self, document: Document, number: int, chunk: Chunk, num_chunks: int) -> Row:
        metadata: dict[str, Any] = {"source": document.id}
        if num_chunks > 1:
            metadata |= {"chunk": number, "start_index": chunk.start, "end_index": chunk.end}
        if chunk.headings:
            metadata["headings"] = list(chunk.headings)
        metadata |= document.metadata  # the user's values take precedence
        return Row(
            id=row_id(document.id, number),
            source_id=document.id,
            chunk=number,
            text=chunk.text,
            metadata=metadata,
            digest=row_digest(chunk.text, metadata, self._fingerprint, chunk.embedded, chunk.span),
            embedded=chunk.embedded,
            span=chunk.span,
        )
