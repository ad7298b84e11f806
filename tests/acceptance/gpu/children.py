"""The contestants' processes: started when needed, ended when they are no longer of use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from embedlib.measuring.process import ContestantFailedError, JsonProcess, OverBudgetError, Process

GRACE_S: Final = 30.0
"""A call may take this much longer than its block, so that only a call that hangs is ended. The
first call of a run imports torch from a disk that is not cached yet, and wakes the GPU up."""

_ENVIRONMENT: Final = MappingProxyType(
    {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
        # vLLM: in the calling process, quiet, and without usage reports.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # It has kernels of its own for what these two packages would be compiled for.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_DEEP_GEMM": "0",
    }
)

StartProcess = Callable[[str, str, "Path | None"], Process]
"""`GpuChild`, or what takes its place in a test: name, device, folder to import from first."""


class GpuChild(JsonProcess):
    """Runs `tests.acceptance.gpu.worker`."""

    def __init__(self, name: str, device: str, path: Path | None) -> None:
        """Start the process of a contestant."""
        environment = {**os.environ, **_ENVIRONMENT}
        if device == "cpu":
            environment["OMP_NUM_THREADS"] = "1"  # tiny products only wait for more
        if path is not None:
            paths = (str(path), os.environ.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-m", "tests.acceptance.gpu.worker", name, device]
        super().__init__(name, command, environment)


@dataclass(frozen=True)
class Place:
    """A contestant, and what it has to load before it is called."""

    name: str
    """A key of `worker.CALLS`."""
    load: tuple[tuple[str, Any], ...] = ()
    """Arguments of its call `load`; none: it loads nothing."""
    path: Path | None = None
    """Where it imports from first."""


class Children:
    """One process for each place.

    After any failure its process is ended: a kernel that failed, or a call that hangs, leaves
    nothing behind that could be asked again.
    """

    def __init__(
        self,
        device: str,
        start: StartProcess,
        loaded: Callable[[Place, dict[str, Any]], None],
    ) -> None:
        """Begin with no process.

        Args:
            device: cuda or cpu.
            start: starts one.
            loaded: called with the result of each `load`.
        """
        self._device = device
        self._start = start
        self._loaded = loaded
        self._running: dict[Place, Process] = {}
        self._broken: dict[Place, str] = {}

    def call(self, place: Place, name: str, left_s: float, /, **arguments: Any) -> Any:
        """Call a contestant and wait for the answer.

        Raises:
            ContestantFailedError: there is no answer, and the process has been ended.
        """
        if place in self._broken:  # loading takes long, and would fail again
            raise ContestantFailedError(place.name, self._broken[place])
        timeout_s = max(0.0, left_s) + GRACE_S
        try:
            process = self._running.get(place) or self._begin(place, timeout_s)
            return process.call(name, timeout_s=timeout_s, **arguments)
        except BaseException as error:
            self.end(place, error)
            raise

    def _begin(self, place: Place, timeout_s: float) -> Process:
        process = self._start(place.name, self._device, place.path)
        self._running[place] = process
        if place.load:
            try:
                self._loaded(place, process.call("load", timeout_s=timeout_s, **dict(place.load)))
            except OverBudgetError:
                raise  # with more time it may do
            except ContestantFailedError as error:
                self._broken[place] = f"it cannot be loaded: {error.reason}"
                raise ContestantFailedError(place.name, self._broken[place]) from error
        return process

    def age_s(self, place: Place) -> float:
        """Return how long ago a running process was started."""
        return self._running[place].age_s

    def end(self, place: Place, error: BaseException | None = None) -> None:
        """End a process, if there is one: at once after an error."""
        process = self._running.pop(place, None)
        if process is not None:
            process.__exit__(*((type(error), error, None) if error else (None,) * 3))

    def end_all(self) -> None:
        """End all of them."""
        for place in list(self._running):
            with suppress(ContestantFailedError):
                self.end(place)
