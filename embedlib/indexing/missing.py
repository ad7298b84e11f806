"""Deletes the stored rows that the source does not contain any more.

There are two kinds. *Surplus* rows are chunks of a document that was read and has become shorter:
its text does not contain them, so they go in every run. *Other* rows belong to documents that were
not read; whether those are gone or were never in this source only the user knows, so these rows go
if `delete_missing` is set, and are counted otherwise.

Nothing is noted in the destination. If a run is killed, the next one compares again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO
from uuid import UUID

from embedlib.errors import SinkError
from embedlib.indexing.options import Shard
from embedlib.indexing.seen import Seen, temporary_file
from embedlib.indexing.sinks.protocol import Sink

_DELETE_ROWS = 1024
_ID_BYTES = 16


class TooManyMissingError(SinkError):
    """More rows are missing in the source than may be deleted."""


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """What was done with the rows that a source does not contain.

    Attributes:
        num_deleted: rows deleted.
        num_other: rows left that belong to documents which were not read.
    """

    num_deleted: int = 0
    num_other: int = 0


def delete_leftover(
    sink: Sink, seen: Seen, shard: Shard | None, max_delete: float | None
) -> Leftover:
    """Delete the stored rows that a source, read to its end, did not contain.

    Args:
        sink: where they are stored.
        seen: what the source contained.
        shard: the part of the rows that is checked; None: all.
        max_delete: the largest share, 0 to 1, of the rows that may be deleted with their documents;
            None: only surplus rows are deleted.

    Raises:
        TooManyMissingError: more are missing, or the source was empty; of the rows of documents
            that were not read, none is deleted.
    """
    num_stored = 0
    # On disk: there may be as many as there are stored rows.
    with temporary_file() as surplus, temporary_file() as other:
        for key in sink.scan():
            if shard is None or shard.has(key.source_id):
                num_stored += 1
                was_seen, num_chunks = seen.find(key.source_id)
                if not was_seen:
                    other.write(key.id.bytes)
                elif num_chunks is not None and key.chunk >= num_chunks:
                    surplus.write(key.id.bytes)
        num_other = other.tell() // _ID_BYTES
        num_deleted = _delete(sink, surplus)
        if max_delete is None or num_other == 0:
            return Leftover(num_deleted=num_deleted, num_other=num_other)
        _check_may_delete(sink, seen, num_other, num_stored, max_delete)
        return Leftover(num_deleted=num_deleted + _delete(sink, other))


def _check_may_delete(
    sink: Sink, seen: Seen, num_missing: int, num_stored: int, max_delete: float
) -> None:
    if not seen.has_rows():
        raise TooManyMissingError(
            f"{sink.name}: the source has no documents, so that {num_missing} of {num_stored} rows "
            "would be deleted; nothing was deleted; check the source"
        )
    if num_missing / num_stored > max_delete:  # a product may be below: 0.29 * 100
        raise TooManyMissingError(
            f"{sink.name}: {num_missing} of {num_stored} rows are missing in the source, more "
            f"than the share max_delete = {max_delete:g}; nothing was deleted; check the source, "
            "or raise max_delete (--max-delete)"
        )


def _delete(sink: Sink, ids: IO[bytes]) -> int:
    """Delete the rows whose ids are in a file, and return how many they are."""
    num_rows = ids.tell() // _ID_BYTES
    ids.seek(0)
    while part := ids.read(_DELETE_ROWS * _ID_BYTES):
        starts = range(0, len(part), _ID_BYTES)
        sink.delete([UUID(bytes=part[start : start + _ID_BYTES]) for start in starts])
    return num_rows
