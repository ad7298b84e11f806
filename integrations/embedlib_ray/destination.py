"""Who writes to a destination: the workers, or the process that started them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embedlib.errors import SinkError
from embedlib.indexing import Sink, Target, Tell, open_sink
from embedlib_ray.cluster import machines

DRIVER_SHARD = "ray"
"""Name of the driver's lock of a destination: a second load of a cluster finds it taken."""


class SharedSink:
    """A sink that many write to: this one begins, deletes and finishes."""

    def __init__(self, sink: Sink, url: str) -> None:
        """Take a sink, and its URL for the workers."""
        self._sink = sink
        self.url = url
        self.shared: Target | None = None
        """What a worker begins with, see `for_worker`; None: it may not yet."""

    def begin(self, target: Target, tell: Tell) -> None:
        """Make sure that nobody else writes; then the workers may begin."""
        name = DRIVER_SHARD if target.shard is None else f"{DRIVER_SHARD} {target.shard}"
        if target.shard is None:
            alone = open_sink(self.url)
            try:
                alone.begin(target, tell)  # as the only writer, it may drop what is stored
            finally:
                alone.close()
        shared = replace(target, recreate=False, shard=name)
        self._sink.begin(shared, tell)
        self.shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def is_shared(sink: Sink) -> bool:
    """Whether workers reach a destination themselves, see `embedlib.indexing.Sink`."""
    return getattr(sink, "is_shared", False)


def for_worker(target: Target, number: int) -> Target:
    """Return what a worker begins with, given what `SharedSink` shares."""
    return replace(target, shard=f"{target.shard} {number}")


def check_one_machine(sink: Sink) -> None:
    """Refuse a destination that other machines of the cluster do not reach.

    Raises:
        SinkError: there are others.
    """
    places = {machine.address for machine in machines()}
    if len(places) > 1:
        raise SinkError(
            f"{sink.name} is on this machine alone, and the cluster has {len(places)}; load a "
            "server (postgresql://, qdrant://), or run without ray"
        )
