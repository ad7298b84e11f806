"""Where rows go: the Sink protocol, and how a URL becomes a sink.

A sink is an object with the methods of `Sink`. An installed package offers one for a URL scheme
with an entry point of the group `embedlib.sinks`: its name is the scheme, its value a function from
`SinkUrl` to `Sink`. `embedlib.testing.check_sink` checks what is promised here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Similarity
from embedlib.errors import SinkError
from embedlib.indexing.rows import Row, model_digest

ENTRY_POINT_GROUP = "embedlib.sinks"

Vectors = NDArray[np.float32]
Tell = Callable[[str], None]
"""Takes a line for the user: a notice, a retry, the progress of an index build."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a load is about to write.

    Attributes:
        dim: D of the vectors.
        similarity: how they are to be compared.
        fingerprint: of the embedder; vectors of two fingerprints do not belong together.
        model: the name the embedder was made with, so that a search can find it.
        recreate: drop what is there first.
        shard: "I/N" if this load is one of several that may run at the same time; None: the only.
    """

    dim: int
    similarity: Similarity
    fingerprint: str
    model: str
    recreate: bool = False
    shard: str | None = None


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """What is in a destination now.

    Attributes:
        num_rows: rows stored.
        dim: D of the vectors.
        similarity: how they are compared.
        fingerprint: of the embedder that made them.
        model: its name.
        index: state of the search index in words, such as "hnsw" or "none, exact scan".
    """

    num_rows: int
    dim: int
    similarity: Similarity
    fingerprint: str
    model: str
    index: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowKey:
    """Which chunk of which document a stored row is."""

    id: UUID
    source_id: str
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One result of a search; the score is the similarity of the two: higher is better."""

    score: float
    id: UUID
    source_id: str
    chunk: int
    text: str
    metadata: Mapping[str, Any]


class Sink(Protocol):
    """A destination: a table, a collection, a file.

    Calls come from one thread at a time, not always the same. `inspect`, `search` and `digests`
    work on a sink that was just made, if `inspect` finds something; the rest only after `begin`.
    Every method raises `SinkError` with one line that names the destination without its password
    and says what to do. What embedlib did not make is never changed or dropped.
    """

    @property
    def name(self) -> str:
        """The destination as a user would write it, without secrets."""

    def inspect(self) -> SinkState | None:
        """Return what is there; None: nothing yet. Changes nothing and takes no lock.

        Raises:
            SinkError: something that embedlib did not make, or it cannot be read.
        """

    def begin(self, target: Target, tell: Tell) -> None:
        """Become the only writer and have a place for rows of `target`.

        Creates what is missing, repairs what a killed writer left, and calls `check_target` on what
        is there. `tell` may be called by any later method. With `target.shard` a sink may let in
        writers of other shards. After an error `close` is called all the same.

        Raises:
            SinkError: another writer is at work, or what is there does not fit.
        """

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return `Row.digest` of those of these rows that are stored."""

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Insert rows or replace those of the same id; they last when this returns.

        Killed before it returns, each row is there whole or as it was before.

        Args:
            rows: at most some thousand, all ids different.
            vectors: float32[N, D], finite.
        """

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest of rows, not their vectors; unknown ids are no error."""

    def scan(self) -> Iterator[RowKey]:
        """Yield every stored row, in bounded memory; rows may be deleted after its end only."""

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows; unknown ids are no error."""

    def finish(self) -> None:
        """Make the rows ready for search: build the index, write the final file.

        Called once, after the last row; not called when the load failed. Quick when nothing
        changed.
        """

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the `k` rows nearest to float32[D], best first; all of them if there are fewer."""

    def close(self) -> None:
        """Give up the lock and all connections; may be called twice, and after a failed `begin`."""


@dataclass(frozen=True, kw_only=True)
class SinkUrl:
    """A destination as the user wrote it: `scheme:location?option=value`.

    Attributes:
        scheme: what is before the first colon.
        location: the rest, without the options; for `scheme://...` it begins with `//`.
        options: the query part.
    """

    scheme: str
    location: str = field(repr=False)  # it may hold a password
    options: Mapping[str, str] = field(repr=False)

    @property
    def path(self) -> Path:
        """The location as a path; `~` is the home folder, as in a shell.

        Raises:
            SinkError: there is no such home folder.
        """
        try:
            return Path(self.location).expanduser()
        except RuntimeError as error:
            raise SinkError(
                f"{self.scheme}:{self.location}: there is no such home folder; write ./~ for a "
                "name that begins with ~"
            ) from error

    def take(self, *known: str) -> dict[str, str]:
        """Return the options after checking their names.

        Raises:
            SinkError: an option is not one of `known`.
        """
        for option in self.options:
            if option not in known:
                if "@" in option:  # the rest of a password with a bare ? in it
                    raise SinkError(
                        f"{self.scheme}: the URL has an option with @ in its name; write ? and @ "
                        "in a password as %3F and %40"
                    )
                near = get_close_matches(option, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise SinkError(f"{self.scheme}: has no option {option!r}; {hint}")
        return dict(self.options)


def parse_url(url: str) -> SinkUrl:
    """Split a destination.

    Raises:
        SinkError: it has no scheme, or an option twice.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        # Not quoted in full: what looks like a path may be a mistyped URL with a password in it.
        raise SinkError(
            "a destination is SCHEME:PLACE, such as postgresql://localhost/mydb?table=docs, "
            f"edge:PATH or jsonl:FILE; {without_password(url)!r} has no scheme"
        )
    location, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    options: dict[str, str] = {}
    for key, value in pairs:
        option = unquote(key)  # + is a plus, as in libpq
        if option in options:
            raise SinkError(f"{scheme}: the URL has the option {option!r} twice; give each once")
        options[option] = unquote(value)
    return SinkUrl(scheme=scheme.lower(), location=location, options=options)


def without_password(url: str) -> str:
    """Return a URL with `***` in place of its password, wherever that is."""
    url = re.sub(r"(?i)([?&](?:password|passwd|token|api_key|apikey)=)[^&]*", r"\1***", url)
    # The last @ of all: a password may hold / ? and @ that should have been written as %2F and so
    # on. Too much is hidden where an option has an @. What looks like a port is one.
    return re.sub(r"(//[^/?:@]*):(?!\d+[/?]).*@", r"\1:***@", url)


def open_sink(url: str) -> Sink:
    """Make the sink for a URL; nothing is connected or created yet.

    Raises:
        SinkError: the scheme is unknown, an option is wrong, or a package is missing; the message
            has the line that installs it.
    """
    parsed = parse_url(url)
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if parsed.scheme in _BUILT_IN:
        module, _, name = _BUILT_IN[parsed.scheme].partition(":")
        make: Callable[[SinkUrl], Sink] = getattr(import_module(module), name)
    elif parsed.scheme in found:
        try:
            make = found[parsed.scheme].load()
        except ImportError as error:
            raise SinkError(f"the sink for {parsed.scheme}: cannot be loaded: {error}") from error
    else:
        known = sorted({*_BUILT_IN, *found})
        near = get_close_matches(parsed.scheme, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise SinkError(f"no sink for {parsed.scheme!r}; {hint}")
    return make(parsed)


_BUILT_IN = {
    "jsonl": "embedlib.indexing.sinks.file_sink:open_file_sink",
    "npy": "embedlib.indexing.sinks.file_sink:open_file_sink",
    "parquet": "embedlib.indexing.sinks.file_sink:open_file_sink",
}


class OtherModelError(SinkError):
    """The rows of a destination were made by another model, or with other options.

    Its `state` is what was found, for those who know the Embedder and can tell what differs.
    """

    def __init__(self, message: str, state: SinkState) -> None:
        super().__init__(message)
        self.state = state


def check_target(state: SinkState | None, target: Target, name: str) -> None:
    """Refuse to write into what does not fit; to be called by `Sink.begin`.

    Raises:
        SinkError: dimension or similarity differ; says how to go on.
        OtherModelError: only the fingerprint does.
    """
    if state is None or target.recreate:
        return
    ways = "choose another destination, or --recreate to drop these rows and start over"
    if state.dim != target.dim:
        raise SinkError(
            f"{name} holds vectors of {state.dim} dimensions and the model makes {target.dim}; "
            f"{ways}"
        )
    if state.similarity != target.similarity:
        raise SinkError(
            f"{name} compares by {state.similarity} and the model by {target.similarity}; {ways}"
        )
    if model_digest(state.fingerprint) != model_digest(target.fingerprint):
        raise OtherModelError(
            f"{name} was made by {state.model!r} with fingerprint {state.fingerprint}, this is "
            f"{target.model!r} with {target.fingerprint}; use the same model and options, {ways}",
            state,
        )


def check_vectors(vectors: Vectors, num_rows: int, dim: int) -> None:
    """Refuse vectors that no destination may get; to be called by `Sink.write`.

    Raises:
        SinkError: the wrong shape, or a number that is not finite.
    """
    if vectors.shape != (num_rows, dim):
        raise SinkError(f"vectors have shape {vectors.shape}, not ({num_rows}, {dim})")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise SinkError(f"vector {row} of the batch holds NaN or infinity; nothing was written")


def is_true(value: str, option: str) -> bool:
    """Read a yes-or-no option of a URL.

    Raises:
        SinkError: it is neither.
    """
    if value.lower() in ("true", "1", "yes"):
        return True
    if value.lower() in ("false", "0", "no"):
        return False
    raise SinkError(f"{option}={value}: it must be true or false")


def host_of(location: str) -> str:
    """Return host and port of `//user:password@host:port/...` for messages."""
    return urlsplit(location).netloc.rpartition("@")[2]
