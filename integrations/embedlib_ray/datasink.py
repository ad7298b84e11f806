"""`EmbedlibDatasink`: writes a Ray dataset with vectors to any destination of embedlib."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.data import Datasink
from ray.data.block import BlockAccessor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from embedlib.config import Config, Similarity
from embedlib.errors import SinkError
from embedlib.indexing import Row, Target, Vectors, check_target, open_sink, tell_nobody
from embedlib.indexing.workers import Seen
from embedlib_ray.blocks import (
    WRITE_ROWS,
    BlockWriter,
    Columns,
    Written,
    key_of,
    num_repeated,
    rows_of,
    vectors_of,
)
from embedlib_ray.destination import SharedSink, check_one_machine, for_worker, is_shared
from embedlib_ray.failures import result_of
from embedlib_ray.model import check_one_vector, describe_model, plan_for
from embedlib_ray.worker import MakeEmbedder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a task of Ray has written.

    Attributes:
        written: counts of its rows.
        keys: uint64[N], one of each row's id: all tasks together tell whether ids are unique.
    """

    written: Written
    keys: NDArray[np.uint64]


class EmbedlibDatasink(Datasink[TaskResult]):  # type: ignore[misc]  # Ray has no type hints here
    """A destination for `Dataset.write_datasink`.

    Rows get the ids and digests that `embedlib index --no-chunk` gives them, so a row that is
    written again replaces itself, and one that is stored already is left alone. The tasks of Ray
    write to a server themselves; other destinations are written by this process's machine.

    Attributes:
        written: what became of the rows of the last write; None: none has ended.
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
            ConfigError: `metadata` is no tuple.
            EmbedlibError: no worker can load the model, or it makes a vector per token.
        """
        self._url = url
        self._columns = Columns(id=id, text=text, vector=vector, metadata=metadata)
        self._target = _make_target(model, Config.from_options(options), recreate=recreate)
        self._shared: Target | None = None
        self._driver: SharedSink | None = None
        self.written: Written | None = None
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
        return 4 * WRITE_ROWS

    def on_write_start(self, schema: Any = None) -> None:
        """Lock the destination.

        Raises:
            SinkError: it cannot be used.
        """
        sink = open_sink(self._url)
        try:
            if is_shared(sink):
                self._driver = SharedSink(sink, self._url)
                self._driver.begin(self._target, tell_nobody)
                self._shared = self._driver.shared
            else:
                # One process alone may open it: an actor that all tasks call.
                sink.close()
                # On this machine: an autoscaler may have added others since this was made.
                here = NodeAffinitySchedulingStrategy(
                    ray.get_runtime_context().get_node_id(), soft=False
                )
                actor = ray.remote(BlockWriter).options(num_cpus=0, scheduling_strategy=here)
                self._writer = actor.remote(self._url, os.getcwd())  # Ray's is another folder
                result_of(self._writer.begin.remote(self._target))
        except BaseException:
            self._close()  # Ray tells a sink only of writes that have begun
            raise

    def write(self, blocks: Iterable[Any], ctx: Any) -> TaskResult:
        """Write blocks in a task.

        Raises:
            SinkError: the dataset lacks a column or a vector, or the destination fails.
            SourceError: a row cannot be stored anywhere, or has the id of another.
        """
        remote: Any = self._writer
        if remote is not None:
            return self._write(blocks, lambda *part: result_of(remote.write.remote(*part)))
        assert self._shared is not None, "`on_write_start` comes first"
        own = BlockWriter(self._url)
        try:
            own.begin(for_worker(self._shared, ctx.task_idx))
            result = self._write(blocks, own.write)
            own.settle()
        finally:
            own.end()
        return result

    def _write(
        self, blocks: Iterable[Any], store: Callable[[list[Row], Vectors], Written]
    ) -> TaskResult:
        written = Written()
        keys = array("Q")
        with closing(Seen()) as seen:
            for block in blocks:
                for rows, vectors in self._parts(block, seen):
                    written.add(store(rows, vectors))
                    keys.extend(map(key_of, rows))
        return TaskResult(written=written, keys=np.array(keys, np.uint64))

    def _parts(self, block: Any, seen: Seen) -> Iterator[tuple[list[Row], Vectors]]:
        accessor = BlockAccessor.for_block(block)
        table = accessor.to_arrow()
        if not table.num_rows:
            return  # an empty block may have no columns
        self._columns.check(table.column_names)
        vectors = accessor.to_numpy(self._columns.vector)
        for start in range(0, table.num_rows, WRITE_ROWS):
            documents = self._columns.documents(table.slice(start, WRITE_ROWS), start)
            rows = rows_of(documents, self._target.fingerprint, seen)
            of_rows = vectors[start : start + WRITE_ROWS]
            yield rows, vectors_of(of_rows, rows, start, self._target.dim)

    def on_write_complete(self, write_result: Any) -> None:
        """Build the search index, and tell of rows that are not stored.

        Raises:
            SinkError: several rows have the same id, so that one of them is stored.
        """
        if self._writer is not None:
            result_of(self._writer.finish.remote())
        elif self._driver is not None:
            self._driver.finish()
        self._close()
        results: list[TaskResult] = write_result.write_returns
        written = self.written = Written()
        for result in results:
            written.add(result.written)
        if written.num_bad_rows:
            first = "; ".join(f"{bad.place}: {bad.reason}" for bad in written.bad_rows)
            logging.getLogger(__name__).warning(
                "rows that cannot be stored and are left out: %d; the first: %s",
                written.num_bad_rows,
                first,
            )
        repeated = num_repeated([result.keys for result in results])
        if repeated:
            name = self._columns.id
            raise SinkError(
                f"{repeated} rows of the dataset have an id that was used before, and of each id "
                f"one row is stored; ids must be unique: dataset.groupby({name!r}).count() finds "
                "those that are not"
            )

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
