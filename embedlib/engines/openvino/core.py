"""OpenVINO's core with the CPU plugin, loaded so that nothing of it outlives what we know."""

from __future__ import annotations

import os
import sys
from typing import Final

import numpy as np

from embedlib.engines.openvino.library import op, ov
from embedlib.errors import EngineUnavailableError
from embedlib.threads.starting import WorkerPool

CPU_FILES: Final = ("/proc/cpuinfo", "/sys/devices/system/cpu")
"""One of them must be there, as it is not in a bare root folder: without, the library looks for
cores for ever, and no other thread runs."""
CAPACITY_VARIABLE: Final = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""How many operators oneDNN keeps for the whole process; it reads this when it makes the first one.

Source: `global_primitive_cache` in oneDNN's src/common/primitive_cache.cpp.
"""
CAPACITY: Final = 16
"""Beside those that each compiled model keeps, see `operator_sizes`: streams and stages that
come to a size one behind the other share them. oneDNN's own 1,024 hold some 200 MiB of sizes that
seldom come again. Source: docs/measurements/memory.md, sizes of batches."""
_processes: Final[set[int]] = set()
"""Those in which the plugin was loaded: this one, and others that it was forked from."""


def loaded_core() -> ov.Core:
    """Return OpenVINO's core, with the CPU plugin loaded by a thread that has already ended.

    With AVX-512 the plugin gives the thread that loads it an alternate signal stack, and frees that
    stack when the plugin is unloaded, on whichever thread releases the last model. If the loading
    thread were still alive, its next signal (Ctrl-C, for example) would be handled on freed or
    reused memory.

    Raises:
        EngineUnavailableError: nothing tells the library about the CPU, or this process was forked
            from one that had loaded the plugin.
    """
    if sys.platform == "linux" and not any(map(os.path.exists, CPU_FILES)):
        raise EngineUnavailableError(
            f"engine openvino: there is neither {' nor '.join(CPU_FILES)}; mount /proc or /sys"
        )
    # A fork has the library's pools without their threads: it waits for these for ever or, if the
    # models of its parent were closed before, dies when it closes its own.
    for process in _processes - {os.getpid()}:
        raise EngineUnavailableError(
            f"engine openvino: its library was loaded in process {process}, and would hang or "
            f"crash in its forked child {os.getpid()}; load models after the fork and none "
            "before, or start the child with 'spawn'"
        )
    _processes.add(os.getpid())  # before it is loaded: a fork may come meanwhile
    core = ov.Core()
    with WorkerPool(1, "embedlib-openvino-load") as passing:
        passing.submit(_load_plugin, core).result()
    return core


def _load_plugin(core: ov.Core) -> None:
    """Load the CPU plugin, and let the oneDNN within it read `CAPACITY` unless the user set it.

    The variable is removed again, since the oneDNN of torch would read it too. `os.environ` never
    has it: another thread that copies that meanwhile would miss a name.
    """
    is_ours = CAPACITY_VARIABLE not in os.environ
    if is_ours:
        os.putenv(CAPACITY_VARIABLE, str(CAPACITY))
    try:
        # Of a known size, so that it is made now; a product might be given to another library.
        row = op.parameter([1, 2], np.float32)
        softmax = op.softmax(row, 1)
        # Not pinned: the next model of one thread takes over this one's executor, with its core.
        settings = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
        core.compile_model(ov.Model([softmax], [row]), "CPU", settings)
    finally:
        if is_ours:
            os.unsetenv(CAPACITY_VARIABLE)
