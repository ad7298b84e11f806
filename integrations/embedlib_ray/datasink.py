"""`EmbedlibDatasink`: writes a Ray dataset with vectors to any destination of embedlib."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray
from ray.data import Datasink
from ray.data.block import BlockAccessor

from embedlib.config import Config, Similarity
from embedlib.errors import SinkError
from embedlib.indexing import Document, Row, Target, Vectors, check_target, open_sink
from embedlib.indexing.workers import BadRows, Reader, Seen, find_changes, ignore
from embedlib_ray.destination import SharedSink, check_one_machine, for_worker, is_shared
from embedlib_ray.model import check_one_vector, describe_model, plan_for
from embedlib_ray.worker import MakeEmbedder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions

_WRITE_ROWS = 512


class EmbedlibDatasink(Datasink[int]):  # type: ignore[misc]  # Ray has no type hints here
    """A destination for `Dataset.write_datasink`.

    Rows get the ids and digests that `embedlib index --no-chunk` gives them, so a row that is
    written again replaces itself, and one that is stored already is left alone. The tasks of Ray
    write to a server themselves; other destinations are written by this process's machine.
    """

    def __init__(
        self,
        url: str,
        model: str | MakeEmbedder,
        *,
        id: str = "id",
        text: str = "text",
        vector: str = "embedding",
        metadata: tuple[str, ...] | None = None,
        recreate: bool = False,
        **options: Unpack[ConfigOptions],
    ) -> None:
        """Check the destination against the model; `on_write_start` begins to write.

        Args:
            url: as `embedlib index --to` takes it.
            model: what made the vectors; a worker loads it to learn its fingerprint.
            id: the column with the ids of documents.
            text: the column with the texts.
            vector: the column with float32[D].
            metadata: columns stored beside them; None: all others.
            recreate: drop the stored rows first.
            **options: of the model, fields of `embedlib.Config`.

        Raises:
            SinkError: the destination cannot be used, or belongs to another model.
            EmbedlibError: no worker can load the model, or it makes a vector per token.
        """
        self._url = url
        self._columns = (id, text, vector)
        self._metadata = metadata
        self._target = _make_target(model, Config.from_options(options), recreate=recreate)
        self._shared = self._target
        self._driver: SharedSink | None = None
        self._writer: Any = None
        with closing(open_sink(url)) as sink:
            if not is_shared(sink):
                check_one_machine(sink)
            check_target(sink.inspect(), self._target, sink.name)

    def get_name(self) -> str:
        """Return what Ray shows."""
        return "embedlib"

    @property
    def min_rows_per_write(self) -> int:
        """Rows that Ray bundles, so that a write is worth its connection."""
        return 4 * _WRITE_ROWS

    def on_write_start(self, schema: Any = None) -> None:
        """Lock the destination.

        Raises:
            SinkError: it cannot be used.
        """
        sink = open_sink(self._url)
        try:
            if is_shared(sink):
                self._driver = SharedSink(sink, self._url, self._share)
                self._driver.begin(self._target, ignore)
            else:
                # One process alone may open it: an actor that all tasks call.
                sink.close()
                self._writer = ray.remote(BlockWriter).options(num_cpus=0).remote(self._url)
                ray.get(self._writer.begin.remote(self._target))
        except BaseException:
            self._close()  # Ray tells a sink only of writes that have begun
            raise

    def _share(self, _url: str, target: Target) -> None:
        self._shared = target

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write blocks in a task; returns how many rows changed."""
        writer: Any = self._writer
        if writer is not None:
            return sum(ray.get(writer.write.remote(*part)) for part in self._parts(blocks))
        own = BlockWriter(self._url)
        try:
            own.begin(for_worker(self._shared, ctx.task_idx))
            num_rows = sum(own.write(rows, vectors) for rows, vectors in self._parts(blocks))
            own.settle()
        finally:
            own.end()
        return num_rows

    def on_write_complete(self, write_result: Any) -> None:
        """Build the search index."""
        if self._writer is not None:
            ray.get(self._writer.finish.remote())
        elif self._driver is not None:
            self._driver.finish()
        self._close()

    def on_write_failed(self, error: Exception) -> None:
        """Give the destination up; what was written stays, and the next write goes on."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            with suppress(Exception):  # the caller has a better reason why the write failed
                ray.get(self._writer.end.remote())
            ray.kill(self._writer)
            self._writer = None
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what the tasks need: not the driver's connection."""
        return {**vars(self), "_driver": None}

    def _parts(self, blocks: Iterable[Any]) -> Iterator[tuple[list[Row], Vectors]]:
        for block in blocks:
            batch = BlockAccessor.for_block(block).to_numpy()
            num_rows = len(next(iter(batch.values()), ()))
            for start in range(0, num_rows, _WRITE_ROWS):
                part = {name: column[start : start + _WRITE_ROWS] for name, column in batch.items()}
                yield self._rows(part)

    def _rows(self, batch: dict[str, Any]) -> tuple[list[Row], Vectors]:
        id_name, text_name, vector_name = self._columns
        missing = [name for name in self._columns if name not in batch]
        if missing:
            raise SinkError(
                f"the dataset has no column {missing[0]!r}; it has {', '.join(sorted(batch))}"
            )
        names = self._metadata
        if names is None:
            names = tuple(name for name in batch if name not in self._columns)
        vectors = np.stack([np.asarray(each, np.float32) for each in batch[vector_name]])
        documents = [
            Document(
                id=batch[id_name][number],
                text=batch[text_name][number],
                metadata={name: _plain(batch[name][number]) for name in names},
            )
            for number in range(len(vectors))
        ]
        return rows_of(documents, self._target.fingerprint), vectors


class BlockWriter:
    """A process that has a destination open."""

    def __init__(self, url: str) -> None:
        self._sink = open_sink(url)

    def begin(self, target: Target) -> None:
        """Become a writer."""
        self._sink.begin(target, ignore)

    def write(self, rows: list[Row], vectors: Vectors) -> int:
        """Write the rows that differ from what is stored; returns how many these are."""
        changes = find_changes(rows, self._sink.digests([row.id for row in rows]))
        place = {row.id: number for number, row in enumerate(rows)}
        if changes.to_embed:
            numbers = [place[row.id] for row in changes.to_embed]
            self._sink.write(changes.to_embed, np.ascontiguousarray(vectors[numbers]))
        if changes.to_update:
            self._sink.write_metadata(changes.to_update)
        return len(changes.to_embed) + len(changes.to_update)

    def settle(self) -> None:
        """Wait until every row is applied: a server that does it later has when it has counted."""
        self._sink.inspect()

    def finish(self) -> None:
        """Make the rows ready for search."""
        self._sink.finish()

    def end(self) -> None:
        """Give the destination up."""
        self._sink.close()


def _make_target(model: str | MakeEmbedder, config: Config, *, recreate: bool) -> Target:
    """Return what a model's vectors are, as a worker says.

    Raises:
        EmbedlibError: it cannot be loaded there, or makes a vector per token.
    """
    identity = describe_model(model, config, plan_for(config, 1))
    check_one_vector(identity)
    return Target(
        dim=identity.dim,
        similarity=cast(Similarity, identity.similarity),
        fingerprint=identity.fingerprint,
        model=identity.model_name,
        precision=identity.precision,
        recreate=recreate,
    )


def rows_of(documents: list[Document], fingerprint: str) -> list[Row]:
    """Return the rows of documents, one each, checked as those of a load.

    Raises:
        SourceError: a document cannot be stored; the message names it.
    """
    seen, bad_rows = Seen(), BadRows(None, ignore, stops=True)
    reader = Reader(documents, None, fingerprint, seen, bad_rows)
    try:
        return [row for group in reader.groups(lambda: False) for row in group.rows]
    finally:
        reader.close()
        seen.close()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
