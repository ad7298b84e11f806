"""`EmbedlibDatasink`: writes a Ray dataset with vectors to any destination of embedlib."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.data import Datasink
from ray.data.block import BlockAccessor

from embedlib.config import Config
from embedlib.errors import SinkError
from embedlib.indexing import Document, Row, Sink, Target, Vectors, open_sink
from embedlib.indexing.workers import BadRows, Reader, Seen, find_changes
from embedlib_ray.cluster import machines
from embedlib_ray.embedder import DRIVER_SHARD, check_one_machine
from embedlib_ray.model import describe_model
from embedlib_ray.sizing import plan_workers
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
        """Describe the destination; this connects to nothing.

        Args:
            url: as `embedlib index --to` takes it.
            model: what made the vectors; a worker loads it to learn its fingerprint.
            id: the column with the ids of documents.
            text: the column with the texts.
            vector: the column with float32[D].
            metadata: columns stored beside them; None: all others.
            recreate: drop the stored rows first.
            **options: of the model, fields of `embedlib.Config`.
        """
        self._url = url
        self._model = model
        self._columns = (id, text, vector)
        self._metadata = metadata
        self._recreate = recreate
        self._config = Config.from_options(options)
        self._target: Target | None = None
        self._driver: Any = None
        self._writer: Any = None

    def get_name(self) -> str:
        """Return what Ray shows."""
        return "embedlib"

    @property
    def min_rows_per_write(self) -> int:
        """Rows that Ray bundles, so that a write is worth its connection."""
        return 4 * _WRITE_ROWS

    def on_write_start(self, schema: Any = None) -> None:
        """Check and lock the destination.

        Raises:
            SinkError: it cannot be used, or belongs to another model.
        """
        on_cpu = self._config.device == "cpu"
        plan = plan_workers(machines(), 1, on_cpu=on_cpu)
        identity = describe_model(self._model, self._config, plan)
        if identity.similarity == "maxsim" or identity.similarity == "meanmaxsim":
            raise SinkError(
                f"{identity.model_name!r} makes a vector per token, which is not written here; "
                "use embedlib.index"
            )
        target = Target(
            dim=identity.dim,
            similarity=identity.similarity,
            fingerprint=identity.fingerprint,
            model=identity.model_name,
            precision=identity.precision,
            recreate=self._recreate,
        )
        sink = open_sink(self._url)
        if getattr(sink, "is_shared", False):
            sink.begin(replace(target, shard=None), _ignore)
            sink.close()
            self._target = replace(target, recreate=False, shard=DRIVER_SHARD)
            self._driver = open_sink(self._url)
            self._driver.begin(self._target, _ignore)
        else:
            check_one_machine(sink)
            self._target = target
            # One process alone may open it: an actor that all tasks call.
            self._writer = ray.remote(_Writer).options(num_cpus=0).remote()
            ray.get(self._writer.begin.remote(self._url, target))

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write blocks in a task; returns how many rows changed."""
        target = self._target
        assert target is not None, "on_write_start comes first"
        writer: Any = self._writer
        if writer is not None:
            return sum(ray.get(writer.write.remote(*part)) for part in self._parts(blocks, target))
        own = _Writer()
        own.begin(self._url, replace(target, shard=f"{target.shard} {ctx.task_idx}"))
        try:
            return sum(own.write(rows, vectors) for rows, vectors in self._parts(blocks, target))
        finally:
            own.end()

    def on_write_complete(self, write_result: Any) -> None:
        """Build the search index."""
        if self._writer is not None:
            ray.get(self._writer.finish.remote())
        else:
            self._driver.finish()
        self._close()

    def on_write_failed(self, error: Exception) -> None:
        """Give the destination up; what was written stays, and the next write goes on."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            ray.get(self._writer.end.remote())
            ray.kill(self._writer)
            self._writer = None
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what the tasks need: not the driver's connection."""
        return {**vars(self), "_driver": None}

    def _parts(self, blocks: Iterable[Any], target: Target) -> Iterator[tuple[list[Row], Vectors]]:
        for block in blocks:
            batch = BlockAccessor.for_block(block).to_numpy()
            num_rows = len(next(iter(batch.values()), ()))
            for start in range(0, num_rows, _WRITE_ROWS):
                part = {name: column[start : start + _WRITE_ROWS] for name, column in batch.items()}
                yield self._rows(part, target)

    def _rows(self, batch: dict[str, Any], target: Target) -> tuple[list[Row], Vectors]:
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
        return _make_rows(documents, target.fingerprint), vectors


class _Writer:
    """The only process that has a destination open."""

    def begin(self, url: str, target: Target) -> None:
        self._sink: Sink = open_sink(url)
        try:
            self._sink.begin(target, _ignore)
        except BaseException:
            self._sink.close()
            raise

    def write(self, rows: list[Row], vectors: Vectors) -> int:
        changes = find_changes(rows, self._sink.digests([row.id for row in rows]))
        place = {row.id: number for number, row in enumerate(rows)}
        if changes.to_embed:
            numbers = [place[row.id] for row in changes.to_embed]
            self._sink.write(changes.to_embed, np.ascontiguousarray(vectors[numbers]))
        if changes.to_update:
            self._sink.write_metadata(changes.to_update)
        return len(changes.to_embed) + len(changes.to_update)

    def finish(self) -> None:
        self._sink.finish()

    def end(self) -> None:
        self._sink.inspect()  # a server that applies rows later has applied all when it has counted
        self._sink.close()


def _make_rows(documents: list[Document], fingerprint: str) -> list[Row]:
    """Return the rows of documents, one each, checked as those of a load.

    Raises:
        SourceError: a document cannot be stored; the message names it.
    """
    seen, bad_rows = Seen(), BadRows(None, _ignore, stops=True)
    reader = Reader(documents, None, fingerprint, seen, bad_rows)
    try:
        return [row for group in reader.groups(lambda: False) for row in group.rows]
    finally:
        reader.close()
        seen.close()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _ignore(_: str) -> None:
    pass
