"""Copies vectors to the host while the device computes the next batch.

A copy from a GPU runs in parallel with kernels only on its own stream and into page-locked memory.
Allocating such memory stops the GPU, so buffers are reused: one is filled while another is read,
and there are never more buffers than results that have not been read.

`Result.read` copies the vectors out of their buffer, into ordinary memory for the caller, and frees
the buffer for the next result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda.device import Device, Event

MIN_BUFFER_NUMBERS: Final = 1 << 16
"""256 KiB: 16 vectors of 4096 numbers. Larger sizes are powers of two, so few are allocated."""


@dataclass(frozen=True)
class Result:
    """The vectors of one batch."""

    vectors: torch.Tensor
    """float32[rows, columns] on the host."""
    arrival: Event
    """The end of the copy."""
    give_back: Callable[[], None]
    """Frees the buffer."""

    def synchronize(self) -> None:
        """Wait until the vectors are on the host."""
        self.arrival.synchronize()

    def read(self) -> NDArray[np.float32]:
        """Return a copy, float32[rows, columns]; call it once, after `synchronize`."""
        vectors: NDArray[np.float32] = self.vectors.numpy().copy()
        self.give_back()
        return vectors


class Results:
    """Starts copies to the host, one at a time; any thread may read the results."""

    def __init__(self, device: Device) -> None:
        """Start without buffers; `start` allocates them."""
        self._device = device
        self._free: deque[torch.Tensor] = deque()

    def start(self, vectors: torch.Tensor, *, is_short: bool = False) -> Result:
        """Start copying float32[rows, columns], after everything launched before.

        Args:
            vectors: on the device.
            is_short: the batch was short, and so is the copy.
        """
        size = vectors.numel()
        buffer = self._take(size)
        target = buffer[:size].view(vectors.shape)
        arrival = self._device.download(vectors, target, is_short=is_short)
        return Result(target, arrival, partial(self._free.append, buffer))

    def _take(self, size: int) -> torch.Tensor:
        """Return a free buffer; a larger one replaces it if it is too small."""
        if self._free and len(buffer := self._free.popleft()) >= size:
            return buffer
        return self._device.host_buffer(max(MIN_BUFFER_NUMBERS, 1 << (size - 1).bit_length()))
