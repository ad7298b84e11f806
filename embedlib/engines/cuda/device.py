"""The device interface of the engine (streams, copies, events, recorded graphs), for GPU and CPU.

Everything is launched on one compute stream, so that a matrix is never written while an earlier
batch still reads it. A long batch's ids are copied on a second stream and vectors on a third, from
and to page-locked memory, while the first one computes: a GPU copies in both directions at once.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda.capability import check_capability, check_visible, torch_version
from embedlib.engines.cuda.streams import give_back_streams, take_streams
from embedlib.engines.torch_gpus import take_share
from embedlib.errors import first_line

DTYPES: Final = {
    "fp8": torch.bfloat16,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "float32": torch.float32,
}
"""Number type of everything that is not FP8, by precision."""

_ALONE: Final = threading.Lock()
"""Held while recording, and while synchronizing a whole device or freeing its cached memory, since
both would invalidate a recording of another engine on it. Torch allows one recording per process at
a time. Source: CUDA C++ Programming Guide, "Prohibited and unhandled operations" of stream capture;
torch/cuda/graphs.py."""


class Event(Protocol):
    """A point in the order of launches."""

    def synchronize(self) -> None:
        """Wait until the device has reached this point."""
        ...


class CpuDevice:
    """What the engine needs of a device, on the host: every launch is complete when it returns.

    After construction one thread at a time launches.
    """

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.capability: tuple[int, int] | None = None
        """Compute capability; None where there is no GPU."""

    def enter(self) -> None:
        """Prepare the calling thread for launching; not needed while the engine is constructed."""

    def launching(self) -> AbstractContextManager[object]:
        """Do the same for as long as the returned context lasts."""
        return nullcontext()

    def upload(self, values: NDArray[np.int32]) -> torch.Tensor:
        """Copy to the device; launches from now on see the copy."""
        return torch.from_numpy(values)

    def refill(self, target: torch.Tensor, values: NDArray[np.int32]) -> None:
        """Copy into a tensor on the device, after earlier launches and before later ones."""
        target.copy_(torch.from_numpy(values))

    def host_buffer(self, size: int) -> torch.Tensor:
        """Return float32[size] on the host, which `download` fills while the device computes."""
        return torch.empty(size, dtype=torch.float32, device="cpu")

    def download(
        self, vectors: torch.Tensor, target: torch.Tensor, *, is_short: bool = False
    ) -> Event:
        """Copy to a host buffer, after earlier launches; the next one may overwrite the vectors.

        Args:
            vectors: float32 numbers on the device.
            target: a host buffer of the same shape.
            is_short: copy before later launches, which costs the host least; else beside them.

        Returns:
            the end of the copy.
        """
        target.copy_(vectors)
        return _Reached()

    def mark(self) -> Event:
        """Return the point after everything launched so far, except copies to the host."""
        return _Reached()

    def warm_up(self, launch: Callable[[], object]) -> None:
        """Launch once, to compile kernels and initialize libraries; any thread may call it."""

    def record(self, launch: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Return a function that launches the same kernels again, and their result tensor."""
        result = launch().clone()
        return partial(_run_again, launch, result), result  # no closure: an error would keep it

    def close(self) -> None:
        """Wait for everything launched and give cached memory back."""


def _run_again(launch: Callable[[], torch.Tensor], result: torch.Tensor) -> None:
    result.copy_(launch())


class _Reached:
    def synchronize(self) -> None:
        """Return immediately."""


class CudaDevice:
    """The same of an NVIDIA GPU."""

    def __init__(self, name: str, memory_fraction: float) -> None:
        """Open a device.

        Args:
            name: cuda or cuda:N.
            memory_fraction: share of the device's memory that the model may take.
        """
        device = torch.device(name)
        index = torch.cuda.current_device() if device.index is None else device.index
        self.torch_device = torch.device("cuda", index)
        self.capability: tuple[int, int] | None = torch.cuda.get_device_capability(index)
        # Also where the engine's construction fails, which closes no device.
        self._give_back = weakref.finalize(self, take_share(index, memory_fraction))
        self._give_back.atexit = False
        self._streams = take_streams(self.torch_device)
        self._compute, self._copies, self._results = self._streams
        self._pool = torch.cuda.graph_pool_handle()

    def enter(self) -> None:
        """Make the compute stream the thread's current stream."""
        torch.cuda.set_device(self.torch_device)
        torch.cuda.set_stream(self._compute)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Make the compute stream the thread's current stream."""
        # The device around it: leaving a stream's context alone would create one on GPU 0.
        with torch.cuda.device(self.torch_device), torch.cuda.stream(self._compute):
            yield

    def upload(self, values: NDArray[np.int32]) -> torch.Tensor:
        """Copy on the copy stream; only the compute stream waits for it."""
        pinned = _page_locked(values)
        with torch.cuda.stream(self._copies):
            copied = pinned.to(self.torch_device, non_blocking=True)
        self._compute.wait_stream(self._copies)
        # Allocated on one stream and read on another: torch must not reuse its memory before both.
        copied.record_stream(self._compute)
        return copied

    def refill(self, target: torch.Tensor, values: NDArray[np.int32]) -> None:
        """Copy on the compute stream, after the last launch that reads the target."""
        target.copy_(_page_locked(values), non_blocking=True)

    def host_buffer(self, size: int) -> torch.Tensor:
        """Return page-locked memory."""
        return torch.empty(size, dtype=torch.float32, device="cpu", pin_memory=True)

    def download(
        self, vectors: torch.Tensor, target: torch.Tensor, *, is_short: bool = False
    ) -> Event:
        """Copy on the compute stream, or on the result stream without the other waiting for it."""
        if is_short:
            target.copy_(vectors, non_blocking=True)
            return self.mark()
        # The next replay of a recording overwrites these vectors, so a clone is downloaded.
        source = vectors.clone()
        self._results.wait_stream(self._compute)
        with torch.cuda.stream(self._results):
            target.copy_(source, non_blocking=True)
        # Allocated on one stream and read on another: torch must not reuse its memory before both.
        source.record_stream(self._results)
        return _CudaEvent(self._results, self.torch_device)

    def mark(self) -> Event:
        """Record an event on the compute stream."""
        return _CudaEvent(self._compute, self.torch_device)

    def warm_up(self, launch: Callable[[], object]) -> None:
        """Launch on the compute stream and wait for it."""
        with _ALONE:
            torch.cuda.synchronize(self.torch_device)  # weights were copied on the caller's stream
        with self.launching():
            launch()
            self._compute.synchronize()

    def record(self, launch: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Record a CUDA graph; the engine's graphs never overlap, so they share one memory pool."""
        self.warm_up(launch)  # kernels and handles must not be created while recording
        # Torch leaves the stream that it records only if the recording could be ended.
        with _ALONE, self.launching():
            graph = torch.cuda.CUDAGraph()
            # Another engine of this process may be computing at the same time, on other threads.
            mode = "thread_local"
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._compute, capture_error_mode=mode
            ):
                result = launch()
        return graph.replay, result

    def close(self) -> None:
        """Wait for everything launched and give cached memory back."""
        try:
            with _ALONE:
                torch.cuda.synchronize(self.torch_device)
                torch.cuda.empty_cache()
            give_back_streams(self.torch_device, self._streams)
        except RuntimeError as error:  # a kernel failed earlier; its batch has got the error
            told = first_line(error)
            logging.getLogger(__name__).warning("closing %s: %s", self.torch_device, told)
        finally:
            self._give_back()


def _page_locked(values: NDArray[np.int32]) -> torch.Tensor:
    """Return a copy in page-locked memory.

    numpy makes it: torch divides a copy of more than 32,768 numbers among threads for all cores,
    and waiting for them takes 3 to 7 ms on 16 cores, while nothing is launched.
    """
    copied = torch.empty(values.shape, dtype=torch.int32, device="cpu", pin_memory=True)
    copied.numpy()[:] = values
    return copied


class _CudaEvent:
    """An event that any thread may wait for.

    A thread that has not used the engine's GPU yet would create a context on GPU 0, which takes
    half a gigabyte of its memory; so the wait selects the engine's device.
    """

    def __init__(self, stream: torch.cuda.Stream, device: torch.device) -> None:
        self._event = torch.cuda.Event()
        self._device = device
        stream.record_event(self._event)

    def synchronize(self) -> None:
        """Wait on the engine's device."""
        with torch.cuda.device(self._device):
            self._event.synchronize()


Device: TypeAlias = CpuDevice | CudaDevice


def open_device(name: str, precision: str, memory_fraction: float) -> Device:
    """Open a device by its name: cpu, cuda or cuda:N.

    Raises:
        EngineUnavailableError: the device does not exist.
        EngineUnsupportedError: the device cannot compute in this precision.
    """
    if name == "cpu":
        return CpuDevice()
    check_visible(name)
    check_capability(torch.cuda.get_device_capability(name), precision, torch_version())
    return CudaDevice(name, memory_fraction)
