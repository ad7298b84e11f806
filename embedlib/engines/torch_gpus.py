"""The GPUs as torch sees them: their numbers, and the memory it may take of them in this process.

Shared by the engines that compute with torch; it imports torch only when it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from embedlib.engines.gpus import Gpu, gpu_index
from embedlib.errors import EngineUnavailableError, first_line


def torch_index(device: str, gpu: Gpu) -> int:
    """Return the number by which torch knows a GPU.

    `cuda:N` counts in bus order. CUDA counts the fastest first, unless CUDA_DEVICE_ORDER says
    otherwise, so that where GPUs differ the same number may be another GPU.

    Args:
        device: cuda or cuda:N.
        gpu: what the driver says of it.

    Raises:
        EngineUnavailableError: torch sees another GPU in its place, or cannot use any.
    """
    import torch

    index, count = gpu_index(device), torch.cuda.device_count()
    if count:  # by the driver's own library, which lists GPUs that torch may be too new for
        try:
            torch.cuda.init()
        except Exception as error:  # of torch's several classes not all are a RuntimeError
            raise EngineUnavailableError(
                f"torch {torch.__version__} cannot use {device}: {first_line(error)}"
            ) from error
    uuid = gpu.uuid.removeprefix("GPU-").lower()
    for other in range(count if uuid else 0):
        if str(torch.cuda.get_device_properties(other).uuid).lower() == uuid:
            return other
    # A MIG device has a UUID of its own, and the name of its GPU with more behind it.
    if index < count and not torch.cuda.get_device_name(index).startswith(gpu.name):
        raise EngineUnavailableError(
            f"{device} is {gpu.name} in bus order, and torch sees "
            f"{torch.cuda.get_device_name(index)}; set CUDA_DEVICE_ORDER=PCI_BUS_ID before the "
            "program starts"
        )
    return index


def take_share(index: int, share: float) -> Callable[[], None]:
    """Allow a model a share of a GPU's memory, beside what torch has taken for others.

    Torch has one limit for a process. The shares of its models add up, so a model that is loaded
    later takes nothing from an earlier one.

    Args:
        index: the GPU's number in torch.
        share: of its memory, 0 to 1.

    Returns:
        Gives the share back; after the last one the limit is as it was before the first.
    """
    import torch

    with _LOCK:
        if index not in _TAKEN:
            limit = torch.cuda.get_per_process_memory_fraction(index)
            _TAKEN[index] = _Taken(limit_before=limit, reserved_before=_reserved(index))
        taken = _TAKEN[index]
        taken.shares.append(share)
        _set_limit(index, taken)
    _take_back()
    return partial(_give_back, index, share)


@dataclass(kw_only=True)
class _Taken:
    """The shares of a GPU that models have now; all in parts of its memory."""

    limit_before: float
    """Torch's limit before the first share."""
    reserved_before: float
    """What torch had taken by then."""
    shares: list[float] = field(default_factory=list)


_TAKEN: Final[dict[int, _Taken]] = {}
"""By the GPU's number in torch; of the process, as torch's limit is."""
_GIVEN_BACK: Final[SimpleQueue[tuple[int, float]]] = SimpleQueue()
_LOCK: Final = threading.Lock()


def _give_back(index: int, share: float) -> None:
    """Give a share back; the garbage collector may call this at any place of any thread."""
    _GIVEN_BACK.put((index, share))
    _take_back()


def _take_back() -> None:
    """Take what was given back, unless somebody holds the lock, who does it behind that."""
    import torch

    while not _GIVEN_BACK.empty() and _LOCK.acquire(blocking=False):
        try:
            with suppress(Empty):
                index, share = _GIVEN_BACK.get_nowait()
                taken = _TAKEN[index]
                taken.shares.remove(share)
                if taken.shares:
                    _set_limit(index, taken)
                else:
                    del _TAKEN[index]
                    torch.cuda.set_per_process_memory_fraction(taken.limit_before, index)
        finally:
            _LOCK.release()


def _set_limit(index: int, taken: _Taken) -> None:
    """Set torch's limit to the sum of the shares, and at least to what it has taken."""
    import torch

    limit = max(taken.reserved_before + sum(taken.shares), _reserved(index))
    # Torch rejects an int, and a share may be the int 1.
    torch.cuda.set_per_process_memory_fraction(float(min(1.0, limit)), index)


def _reserved(index: int) -> float:
    """Return the part of a GPU's memory that torch has taken in this process."""
    import torch

    reserved = torch.cuda.memory_reserved(index)
    return reserved / torch.cuda.get_device_properties(index).total_memory if reserved else 0.0
