"""What a sink may do besides: keep how far a source was read."""

from __future__ import annotations

from typing import Protocol

from embedlib.indexing.sinks.protocol import Sink


class PositionSink(Sink, Protocol):
    """A sink that also keeps how far a source was read; see `embedlib.indexing.resuming`."""

    def load_position(self) -> str | None:
        """Return what `save_position` stored last; None: nothing, or nothing is loaded.

        Works on a new sink object, as `inspect` does.
        """

    def save_position(self, position: str | None) -> None:
        """Store a short line, durably and as a whole, in place of the last one; None: drop it.

        Called after `begin`. It ends with the rows: with `Target.recreate`, `begin` drops it.
        """
