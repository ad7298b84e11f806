"""Where a load goes on in a source that can leave out what earlier loads have read.

The position is stored in the destination, after every row before it: a run that is killed leaves
the old one, and the next run compares the rows after that again. It holds only for the load that
made it. Any other load, of another query, model or way to divide texts, drops it first, so that no
row stays as it was before the other load. So does a destination that has lost rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, cast
from uuid import uuid4

from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.abilities import PositionSink
from embedlib.indexing.sinks.protocol import Sink, Target, Tell, count_stored
from embedlib.indexing.sources.protocol import ResumableSource
from embedlib.version import __version__

_NOT_OF_ROWS = (
    *("batch_rows", "delete_missing", "max_delete", "recreate", "dry_run", "limit", "shard"),
    *("on_error", "errors_file", "replace"),
)
"""Options that do not decide what a row is. Any other one, also a future one, may."""


class Resuming:
    """The position of one load. All methods make calls to the destination."""

    def __init__(
        self,
        documents: Iterable[Document | BadRow],
        sink: Sink,
        settings: IndexOptions,
        tell: Tell,
    ) -> None:
        """Check the options against one another.

        Raises:
            ConfigError: an option needs the whole source.
            SinkError: the destination stores no position.
        """
        is_resumable = hasattr(documents, "resume") and hasattr(documents, "position")
        self._source = cast(ResumableSource, documents) if is_resumable else None
        self._sink = cast(PositionSink, sink) if hasattr(sink, "load_position") else None
        self._settings = settings
        self._tell = tell
        self._scope = ""
        self._stored: str | None = None
        self.is_partial: bool = getattr(documents, "is_partial", False)
        """Whether the source leaves out documents that are stored."""
        if self._source is None:
            return
        if settings.delete_missing:
            raise ConfigError(
                "delete_missing and replace need the whole source, and since_field reads only "
                "what has changed; leave since_field (--since-field) out of such runs"
            )
        if settings.shard is not None:
            raise ConfigError(
                "since_field and shard exclude one another, since each part would move the "
                "position of all; load the parts without since_field, and then once with it"
            )
        if self._sink is None:
            raise SinkError(
                f"{sink.name} stores no position, which since_field (--since-field) needs; leave "
                "it out, or load another kind of destination"
            )

    def take_up(self, target: Target) -> None:
        """Tell the source where to begin, or drop a position that this load makes wrong."""
        if self._sink is None:
            return
        self._stored = self._sink.load_position()
        if self._source is not None:
            self._scope = self._scope_of(self._source, target)
        stored = _parse(self._stored)
        if stored is None:
            return
        if not self._settings.recreate and stored["scope"] == self._scope:
            if count_stored(self._sink) >= stored["num_rows"]:
                assert self._source is not None, "without a source there is no scope"
                self._source.resume(stored["position"])
                self.is_partial = True
                return
            self._tell(f"{self._sink.name} has lost rows since the last load; all are read again")
        if not self._settings.dry_run:
            self._sink.save_position(None)
            self._stored = None

    def keep(self, num_bad: int) -> None:
        """Store where the next load may begin, after the last row of a load that is complete."""
        if self._source is None or self._sink is None or self._settings.limit is not None:
            return
        if num_bad:
            self._tell(
                f"{self._sink.name}: rows were skipped, so the next run begins where this one did; "
                "if they stay as they are, leave them out of the query (WHERE)"
            )
            return
        position = self._source.position()
        if position is None:
            return
        kept = {"scope": self._scope, "position": position, "num_rows": count_stored(self._sink)}
        line = json.dumps(kept)
        if line != self._stored:
            if self._stored and _parse(self._stored) is None:
                self._tell(
                    f"{self._sink.name}: the position of the source takes the place of what "
                    f"somebody wrote where it is kept: {self._stored!r}"
                )
            self._sink.save_position(line)

    def _scope_of(self, source: ResumableSource, target: Target) -> str:
        """Return a digest of everything that decides the rows of this load."""
        # Not `asdict`, which copies a function's object: it may hold a connection.
        options = {
            key: value for key, value in vars(self._settings).items() if key not in _NOT_OF_ROWS
        }
        parts = [__version__, source.scope, target.rows_fingerprint, options]
        # What a function does cannot be compared, and another one may come to lie at its address.
        line = json.dumps(parts, default=lambda _: uuid4().hex)
        return blake2b(line.encode(), digest_size=16).hexdigest()


def _parse(line: str | None) -> dict[str, Any] | None:
    """Return what `keep` stored; None: nothing, or a user wrote this where a sink keeps it."""
    try:
        stored = json.loads(line or "")
    except ValueError:
        return None
    is_ours = isinstance(stored, dict) and stored.keys() >= {"scope", "position", "num_rows"}
    return stored if is_ours else None
