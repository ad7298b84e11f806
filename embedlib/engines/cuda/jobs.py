"""The state of a batch in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.cuda.device import Event
from embedlib.engines.cuda.executor import DeviceBatch
from embedlib.engines.cuda.groups import Group
from embedlib.engines.cuda.inputs import Ints, Layout
from embedlib.engines.cuda.results import Result
from embedlib.engines.gpu_errors import run_error


@dataclass(frozen=True)
class Prepared:
    """A long batch, laid out on the host."""

    layout: Layout
    values: Ints
    groups: tuple[Group, ...]
    ends: Ints | None
    """cu_seqlens; None if some sequences follow a kept prefix."""


class BatchInFlight:
    """A batch in flight."""

    def __init__(
        self,
        batch: Batch,
        num_kept: Ints,
        on_done: Callable[[], None],
        prepared: Prepared | None,
        *,
        has_vectors: bool = True,
    ) -> None:
        self.batch = batch
        self.num_kept = num_kept
        """int32[B], tokens before each sequence whose keys are kept."""
        self.on_done = on_done
        self.prepared = prepared
        """None for a short batch."""
        self.has_vectors = has_vectors
        self.on_device: DeviceBatch | None = None
        self.arrival: Event | None = None
        """When the batch is done; set once all of it is launched."""
        self.vectors: Result | None = None
        self.error: BaseException | None = None

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], or [T, D] without pooling."""
        if self.error is not None:
            raise run_error("cuda", self.error) from self.error
        assert self.vectors is not None, "a batch has no result; this is a bug in embedlib"
        return self.vectors.read()
