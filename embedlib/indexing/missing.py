"""Deletes the stored rows that the source does not contain any more."""

from __future__ import annotations

from uuid import UUID

from embedlib.errors import SinkError
from embedlib.indexing.options import Shard
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import Sink

_DELETE_ROWS = 1024


class TooManyMissingError(SinkError):
    """More rows are missing in the source than may be deleted."""


def delete_missing(sink: Sink, seen: Seen, shard: Shard | None, max_delete: float) -> int:
    """Delete the stored rows that a source, read to its end, did not contain; return how many.

    Args:
        sink: where they are stored.
        seen: what the source contained.
        shard: the part of the rows that is checked; None: all.
        max_delete: share of the rows, 0 to 1.

    Raises:
        TooManyMissingError: more than `max_delete` are missing; nothing is deleted.
    """
    missing, num_stored = list[UUID](), 0
    for key in sink.scan():
        if shard is None or shard.has(key.source_id):
            num_stored += 1
            if not seen.has(key.source_id, key.chunk):
                missing.append(key.id)
    if len(missing) > max_delete * num_stored:
        raise TooManyMissingError(
            f"{sink.name}: {len(missing)} of {num_stored} rows are missing in the source, more "
            f"than the share max_delete = {max_delete:g}; nothing was deleted; check the source, "
            "or raise --max-delete"
        )
    for start in range(0, len(missing), _DELETE_ROWS):
        sink.delete(missing[start : start + _DELETE_ROWS])
    return len(missing)
