"""Vectors on their way to the host, beside what is computed next.

A copy from a GPU runs beside its kernels only if it is on a stream of its own and goes into
page-locked memory. Taking such memory stops the GPU, so a buffer is used again and again: one fills
while another is read, and there are never more of them than results that nobody has read.

A buffer is free again when its vectors have been copied out of it, which `Result.read` does: what a
caller keeps is ordinary memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda.device import Device, Event

MIN_BUFFER_NUMBERS: Final = 1 << 16
"""256 KiB: 16 vectors of 4096 numbers. Larger ones are powers of two, so that few are taken."""


class Result:
    """The vectors of one batch."""

    def __init__(
        self, vectors: torch.Tensor, arrival: Event, give_back: Callable[[], None]
    ) -> None:
        """Take what `Results.start` has started.

        Args:
            vectors: float32[rows, columns] on the host.
            arrival: when they are there.
            give_back: makes their buffer free.
        """
        self._vectors = vectors
        self._arrival = arrival
        self._give_back = give_back

    def synchronize(self) -> None:
        """Wait until the vectors are on the host."""
        self._arrival.synchronize()

    def read(self) -> NDArray[np.float32]:
        """Return float32[rows, columns], a copy; once, and after `synchronize`."""
        vectors: NDArray[np.float32] = self._vectors.numpy().copy()
        self._give_back()
        return vectors


class Results:
    """Starts copies to the host; one thread starts them, any may read."""

    def __init__(self, device: Device) -> None:
        """Make no buffer yet."""
        self._device = device
        self._free: deque[torch.Tensor] = deque()

    def start(self, vectors: torch.Tensor) -> Result:
        """Start to copy float32[rows, columns], behind all that was launched before."""
        size = vectors.numel()
        buffer = self._take(size)
        target = buffer[:size].view(vectors.shape)
        arrival = self._device.download(vectors, target)
        return Result(target, arrival, partial(self._free.append, buffer))

    def _take(self, size: int) -> torch.Tensor:
        """Return a free buffer; one that is too small is given up for a larger one."""
        if self._free and len(buffer := self._free.popleft()) >= size:
            return buffer
        return self._device.host_buffer(max(MIN_BUFFER_NUMBERS, 1 << (size - 1).bit_length()))
