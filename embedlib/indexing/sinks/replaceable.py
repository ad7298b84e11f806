"""What a sink needs for a change of model: rows beside those that searches read, and a switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard
from uuid import UUID

from embedlib.errors import SinkError
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks.protocol import Description, Sink, SinkState
from embedlib.vectors.arrays import Vectors


class StoredRow(NamedTuple):
    """What a destination holds of a row, for the checks of a change of model."""

    text: str
    vector: Vectors
    """float32[D]; of a row with a vector per token float32[T, D]."""


class ReplaceableSink(Sink, Protocol):
    """A sink whose rows can be replaced by those of another model while searches go on.

    The destination has up to three sets of rows: those that searches find, those that are loaded
    *beside* them and found by nobody, and the *old* ones, which were found before the last switch.
    All that is known of them is in the destination itself. `scan` works without `begin` here if
    there are rows.
    """

    def hold(self, state: SinkState) -> None:
        """Search only among rows of the models of this state from now on.

        A switch changes nothing for such a searcher: it goes on with the old rows, and `search`
        raises `ReplacedError` when these are gone. `inspect` always tells of the rows that a new
        searcher finds.
        """

    def beside(self) -> ReplaceableSink:
        """Return a sink for the rows of another model.

        It is closed by itself. Its `begin` excludes the writers of this destination, too.

        Raises:
            SinkError: this destination cannot be switched; the message says what to do.
        """

    def switch(self) -> None:
        """Let searches find these rows, and keep those that they found before, in one atomic step.

        Called on what `beside` returned, after `finish`. If it is killed, all of it is done or
        nothing; then the load is run again.

        Raises:
            SinkError: old rows are kept already, or the step is not possible now.
        """

    def old(self) -> SinkState | None:
        """Return what is kept since the last switch; None: nothing."""

    def drop_old(self) -> None:
        """Remove what `old` returns; does nothing if that is None."""

    def stored_rows(self, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
        """Return text and vector of those of these rows that are stored; at most some dozens."""


class ReplacedError(SinkError):
    """The rows that a search was opened for are gone: it must be opened again."""

    def __init__(self, name: str, held: SinkState, now: str | None) -> None:
        """Say so.

        Args:
            name: of the destination.
            held: what was searched.
            now: the model of the rows that new searches find; None: there are none.
        """
        found = "nothing" if now is None else f"rows of {now!r}"
        super().__init__(
            f"{name} holds {found} now, and those of {held.model!r} that were searched are gone; "
            "open the search again, with the model of the stored rows"
        )


def models_of(rows: Description) -> tuple[str, str | None]:
    """Return what differs if rows were made by other models."""
    sparse = rows.sparse
    return model_digest(rows.fingerprint), model_digest(sparse.fingerprint) if sparse else None


def can_replace(sink: Sink) -> TypeGuard[ReplaceableSink]:
    """Whether the rows of a destination can be replaced while searches go on."""
    return hasattr(sink, "switch")


def replaceable(sink: Sink) -> ReplaceableSink:
    """Return a destination as one whose rows can be replaced while searches go on.

    Raises:
        SinkError: it is none.
    """
    if not can_replace(sink):
        raise SinkError(
            f"{sink.name} cannot hold rows of two models at a time; for another model load into a "
            "new destination, let searches use that, and remove this one, or start over here with "
            "--recreate"
        )
    return sink
