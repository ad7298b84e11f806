"""Loads that a cluster works on: what `index` needs of it, and how a package offers one.

The entry point `ray` of the group `embedlib.workers` is a function like `OpenWorkers`. No module of
this package imports such a package. This is also the one import address of what such a package
takes from a load: the names of `__all__`.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from embedlib.checks import COUNT, optional
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, EngineRunError, shown
from embedlib.indexing.bad_rows import MAX_REPORTED_BAD_ROWS, BadRows
from embedlib.indexing.chunks.chunking import cut_nothing
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.load import LOOK_SECONDS, Load, join_vectors
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.reader import Group, Reader
from embedlib.indexing.replacing import built_state
from embedlib.indexing.report import Tally
from embedlib.indexing.row_jobs import end_of_window
from embedlib.indexing.rows import RowChanges, Span, find_changes
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import Sink, SinkState, Target, Tell, identify
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sources.arrow_rows import batch_rows
from embedlib.indexing.sources.row_fields import Fields, RawRow
from embedlib.indexing.stored_model import open_embedder, precision_to_store
from embedlib.packages.installing import load_offered

__all__ = [
    "LOOK_SECONDS",
    "MAX_REPORTED_BAD_ROWS",
    "BadRows",
    "ClusterEmbedder",
    "Fields",
    "Group",
    "Load",
    "OpenWorkers",
    "RawRow",
    "Reader",
    "RowChanges",
    "RowLoad",
    "Seen",
    "SinkThread",
    "Span",
    "Tally",
    "batch_rows",
    "check_ray",
    "cut_nothing",
    "end_of_window",
    "find_changes",
    "find_workers",
    "join_vectors",
    "open_embedder",
    "precision_to_store",
]

ENTRY_POINT_GROUP = "embedlib.workers"


class RowLoad(Protocol):
    """Takes the rows of a source to their destination; `embedlib.indexing.load.Load` is one."""

    def add(self, group: Group) -> None:
        """Accept a group of rows; blocks while too many are on their way."""

    def work(self) -> bool:
        """Move some rows further; False: there is nothing to do before the next group."""

    def end(self) -> EngineRunError | None:
        """Take the last rows to their destination; called once, after the last group.

        Returns:
            what says which rows could not be loaded, however often it was tried; all others are.
        """

    def cancel(self) -> None:
        """Drop what has not begun."""


class ClusterEmbedder(TextEmbedder, Protocol):
    """An embedder of several machines, which takes the rows of a load to its workers."""

    def check_sink(self, sink: Sink, url: str | None) -> Sink:
        """Return the sink of the load: the one given, unless the workers write themselves.

        Raises:
            SinkError: the workers cannot reach the destination.
        """

    def start_load(
        self,
        sink: Sink,
        thread: SinkThread,
        target: Target,
        bad_rows: BadRows,
        tally: Tally,
        batch_rows: int,
        /,
    ) -> RowLoad:
        """Start a load; the sink has begun, and its calls are made on the thread.

        At most `batch_rows` rows for each worker are on their way.
        """

    def close(self) -> None:
        """Free the workers."""


class OpenWorkers(Protocol):
    """Opens a model on the workers of a cluster."""

    def __call__(
        self,
        model: str,
        address: str,
        *,
        config: Config,
        num_workers: int | None,
        state: SinkState | None,
        destination: str,
        tell: Tell,
    ) -> ClusterEmbedder:
        """Return an embedder whose texts are embedded there.

        Args:
            model: its name, or a folder that all workers see.
            address: of the cluster, as its package takes it.
            config: options of the model.
            num_workers: how many; None: one for each machine or GPU.
            state: what the destination holds, for the precision; None: nothing that matters.
            destination: its name.
            tell: takes a line for the user.

        Raises:
            ConfigError: there is no such cluster, or its package is missing.
        """


def find_workers() -> OpenWorkers:
    """Return the function that opens the workers of a Ray cluster.

    Raises:
        ConfigError: its package is not installed; the message has the command that installs it.
    """
    return cast("OpenWorkers", load_offered(ENTRY_POINT_GROUP, "ray", "ray"))


def check_ray(address: object, num_workers: object, sparse: object = None) -> None:
    """Check arguments of `index`.

    Raises:
        ConfigError: one is wrong, the second is given without the first, or the third with it.
    """
    if address is not None and (not isinstance(address, str) or not address):
        raise ConfigError(f"ray = {shown(address)}; it must be auto, local or HOST:PORT")
    if address is not None:
        refuse_sparse(sparse)
    optional(COUNT).take("ray_workers", num_workers)
    if num_workers is not None and address is None:
        raise ConfigError(f"ray_workers = {num_workers} needs ray='auto' or another address")


def refuse_sparse(sparse: object) -> None:
    """Refuse a model of sparse vectors beside workers of a cluster.

    Raises:
        ConfigError: there is one.
    """
    if sparse is not None:
        raise ConfigError(
            "sparse vectors are made in one process, not by the workers of a cluster; leave sparse "
            "(--sparse) or ray (--ray) out"
        )


def open_on_ray(
    embedder: object,
    address: str,
    num_workers: int | None,
    sink: str | Sink,
    options: IndexOptions,
    tell: Tell,
) -> ClusterEmbedder:
    """Open the model of `index(..., ray=...)` on the workers of a Ray cluster.

    Args:
        embedder: a model's name, or an Embedder, of which the name and the options count.
        address: of the cluster.
        num_workers: how many; None: one for each machine or GPU.
        sink: the destination.
        options: of the load.
        tell: takes a line for the user.

    Raises:
        ConfigError: an argument is wrong, or there is no such cluster.
    """
    if isinstance(embedder, Embedder):
        model, config = embedder.model_name, embedder.config
    elif isinstance(embedder, str):
        model, config = embedder, Config()
    else:
        raise ConfigError(
            f"embedder = {shown(embedder)}; with ray it must be a model's name or an Embedder, "
            "which each worker loads for itself"
        )
    opened = open_sink(sink) if isinstance(sink, str) else sink
    try:
        state = None if options.recreate else state_to_fit(opened, replace=options.replace)
    finally:
        if isinstance(sink, str):
            opened.close()
    return find_workers()(
        model,
        address,
        config=config,
        num_workers=num_workers,
        state=state,
        destination=opened.name,
        tell=tell,
    )


def state_to_fit(sink: Sink, *, replace: bool) -> SinkState | None:
    """Return what the vectors of a load must fit: what is stored, or is being loaded beside it."""
    return built_state(sink) if replace else identify(sink)


def as_cluster(embedder: Any) -> ClusterEmbedder | None:
    """Return an embedder that takes rows to workers of its own; None: it is not one."""
    takes_rows = hasattr(embedder, "start_load") and hasattr(embedder, "check_sink")
    return cast("ClusterEmbedder", embedder) if takes_rows else None
