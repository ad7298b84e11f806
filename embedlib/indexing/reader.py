"""The reading half of a bulk load: its own thread turns documents into groups of rows."""

from __future__ import annotations

import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from embedlib.errors import SourceError, first_line, shown
from embedlib.indexing.chunking import cut_nothing
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
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.json_values import BadValueError, check_text, json_value
from embedlib.indexing.sources.opening import no_document
from embedlib.starting import starting_threads

GROUP_ROWS = 512
"""Maximum rows in a group; a group is smaller when the loader waits."""

_GROUP_DOCUMENTS = 128
"""Maximum documents chunked together: enough to use every core for tokenizing."""
_GROUP_CHARS = 1 << 22
"""So many are enough too, of one text even, and of rows: 128 books would fill the memory."""
_QUEUE_GROUPS = 4
_JOIN_SECONDS = 2.0
MAX_REPORTED_BAD_ROWS = 10
MAX_ID_CHARACTERS = 4096
"""Longer than any path; a database index cannot store much longer keys."""


@dataclass
class Group:
    """Rows read together."""

    rows: list[Row] = field(default_factory=list)
    num_documents: int = 0
    """Documents whose rows end in this group."""


class BadRows:
    """Counts bad rows, reports the first ones, writes them to a file, or ends the load."""

    def __init__(
        self, path: str | Path | None, tell: Tell, *, stops: bool, is_partial: bool = False
    ) -> None:
        """Check that the file can be written; its content is kept until `start`.

        Args:
            path: the file; None: there is none.
            tell: takes lines for the user.
            stops: whether the first bad row ends the load.
            is_partial: whether only a part of the source is read: then the file is not emptied,
                since what it says of the others still holds.

        Raises:
            SourceError: it cannot be written.
        """
        self.num_rows = 0
        self.has_unnamed = False
        """Whether a bad row has no id, so that its stored rows, if any, are unknown."""
        self._tell = tell
        self._stops = stops
        self._is_partial = is_partial
        self._lock = threading.Lock()  # the reader's and the caller's thread both add rows
        self._path = None if path is None else Path(path)
        self._file: IO[str] | None = None
        if self._path is not None:
            with self._file_errors():
                self._path.open("a").close()

    def start(self) -> None:
        """Begin the file; call this only after the destination is locked against other loads."""
        if self._path is not None:
            with self._lock, self._file_errors():
                early = self._file
                mode = "a+" if self._is_partial else "w+"
                self._file = self._path.open(mode, encoding="utf-8", errors="backslashreplace")
                if early is not None:
                    early.seek(0)
                    shutil.copyfileobj(early, self._file)
                    early.close()

    def add(self, bad: BadRow) -> None:
        """Record a bad row.

        Raises:
            SourceError: the load is to stop at the first one, or the file cannot be written.
        """
        if self._stops:
            raise SourceError(f"{bad.place}: {bad.reason}")
        with self._lock:
            self.num_rows += 1
            self.has_unnamed |= bad.id is None and bad.file is None
            if self._path is not None:
                record = {"place": bad.place, "id": bad.id, "reason": bad.reason}
                with self._file_errors():
                    if self._file is None:  # before `start`
                        self._file = TemporaryFile(  # noqa: SIM115 - `start` and `close` close it
                            "w+", encoding="utf-8", errors="backslashreplace"
                        )
                    print(json.dumps(record, ensure_ascii=False), file=self._file, flush=True)
            if self.num_rows <= MAX_REPORTED_BAD_ROWS:
                self._tell(f"skipped: {bad.place}: {bad.reason}")
            if self.num_rows == MAX_REPORTED_BAD_ROWS + 1:
                self._tell("more rows are skipped; errors_file (--errors-file) lists all of them")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # every row was flushed, or its error was raised
                self._file.close()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            reason = getattr(error, "strerror", None) or first_line(error)
            name = shown(str(self._path), 300)
            raise SourceError(f"cannot write errors_file {name}: {reason}") from error


class Reader:
    """Reads a source ahead on the thread `embedlib-reader` and yields groups of rows.

    The order of rows is that of the source.
    """

    def __init__(
        self,
        source: Iterable[Document | BadRow],
        chunker: CutDocuments | None,
        fingerprint: str,
        seen: Seen,
        bad_rows: BadRows,
        *,
        limit: int | None = None,
        shard: Shard | None = None,
    ) -> None:
        self._source = source
        self._cut = chunker or cut_nothing
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
        """Wait for the first group, which `groups` yields later; False: the source has no rows.

        Raises:
            Exception: the one that was raised while reading.
        """
        self._first = next(self.groups(while_waiting=lambda: False), None)
        if self._first is None:
            self._queue.put(None)  # `groups` finds the end again
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
            item = _checked(item)
            if self._shard is not None and item.id is not None and not self._shard.has(item.id):
                continue
            if item.id is not None and not self._seen.add(item.id):
                reason = f"the id {item.id!r} was used before; ids must be unique{self._hint}"
                item = BadRow(place=_place(item), reason=reason, id=item.id)
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
                self._bad_rows.add(BadRow(place=_place(document), reason=reason, id=document.id))
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


def _checked(item: Document | BadRow) -> Document | BadRow:
    """Convert a document that some destination could not store to a bad row.

    embedlib's own sources check their documents; a source of the caller may not.
    """
    if isinstance(item, BadRow):
        return item
    if not isinstance(item, Document):
        raise no_document(item)
    id_: str | None = None
    try:
        # Files may have numbers as ids too, and are read in the same way.
        if isinstance(item.id, (int, np.integer)) and not isinstance(item.id, bool):
            item = replace(item, id=_number_as_text(item.id))
        if not isinstance(item.id, str) or not item.id:
            raise BadValueError(f"has the id {shown(item.id)}, which must be a str and not empty")
        if len(item.id) > MAX_ID_CHARACTERS:
            raise BadValueError(f"has an id of more than {MAX_ID_CHARACTERS} characters")
        check_text(item.id)
        id_ = item.id
        if not isinstance(item.text, str) or not item.text or item.text.isspace():
            raise BadValueError(f"has the text {shown(item.text)}, which must be a str with words")
        check_text(item.text)
        metadata = {} if item.metadata is None else item.metadata
        if not isinstance(metadata, Mapping):
            raise BadValueError(f"has the metadata {shown(metadata)}, which must be a mapping")
        if not isinstance(item.is_markdown, (bool, np.bool_)):
            raise BadValueError(
                f"has is_markdown = {shown(item.is_markdown)}, which must be True or False"
            )
        if not isinstance(item.place, str):
            raise BadValueError(f"has the place {shown(item.place)}, which must be a str")
        # Always replaced: a Decimal compares equal to the number it becomes, but JSON rejects it.
        return replace(item, metadata=json_value(metadata))
    except BadValueError as error:
        return BadRow(place=_place(item), reason=str(error), id=id_)
    except RecursionError:
        return BadRow(place=_place(item), reason="has metadata nested too deeply", id=id_)


def _number_as_text(number: int | np.integer[Any]) -> str:
    try:
        return str(number)
    except ValueError as error:  # Python prints numbers of up to 4,300 digits
        raise BadValueError(f"has an id of more than {MAX_ID_CHARACTERS} characters") from error


def _place(item: Document | BadRow) -> str:
    place = item.place if isinstance(item.place, str) else ""
    return place or shown(item.id, MAX_ID_CHARACTERS)
