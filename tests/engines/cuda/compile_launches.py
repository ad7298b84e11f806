"""Compiles the kernels that whole models launch, with the arguments of the launch; runs none.

Prints as JSON, for each model ("VARIANT PRECISION"), the names of the kernels compiled when the
engine starts and of those compiled while it serves batches. A separate program, for the same reason
as `compile_kernels`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from embedlib.engines.cuda import kernels, loaded_model
from embedlib.engines.cuda.capability import HOPPER
from embedlib.engines.cuda.device import CpuDevice
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.kernels import overlap
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from embedlib.testing.models.write import write_tiny_model

LENGTHS = ([1], [2, 3], [7] * 3, [16] * 40, [1] * 100, [20] * 30 + [1], [5] * 103)
"""Sequence lengths of each batch: recorded ones, and launched ones with any remainder by 16."""
MAX_GRID_Y = 65_535
"""Source: CUDA C++ Programming Guide, technical specifications per compute capability."""


class NoGpu:
    """The part of a driver that Triton calls before a launch."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


class Compiling(CpuDevice):
    """A CPU device that runs warm-ups, as a GPU does."""

    def warm_up(self, launch: Callable[[], object]) -> None:
        launch()


def main(capability: int, models: Sequence[str]) -> None:
    compiled: dict[str, dict[str, list[str]]] = {}
    model = phase = ""
    run, do_compile = JITFunction.run, JITFunction._do_compile

    def note(self: Any, *args: Any, **options: Any) -> Any:
        compiled[model][phase].append(self.__name__)
        return do_compile(self, *args, **options)

    def launch(self: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> Any:
        assert all(grid), grid
        assert max(grid[1:], default=1) <= MAX_GRID_Y, grid
        return run(self, *args, grid=grid, warmup=True, **options)

    driver.set_active(NoGpu(capability))
    overlap._overlaps = lambda _: divmod(capability, 10) == HOPPER  # tensors are on the CPU
    JITFunction.run, JITFunction._do_compile = launch, note
    kernels.multiply_many_rows = lambda *_: None
    loaded_model.kernels_for = lambda _: kernels
    loaded_model.open_device = lambda *_: Compiling()
    for model in models:
        variant, precision = model.split()
        compiled[model] = {"start": [], "traffic": []}
        phase = "start"
        with tempfile.TemporaryDirectory() as folder:
            files = read_model_files(write_tiny_model(Path(folder, "model"), variant))
            engine = CudaEngine(
                files.spec,
                load_weights(files),
                precision=cast(Any, precision),
                max_batch_tokens=1024,
            )
            phase = "traffic"
            for lengths in LENGTHS:
                done = threading.Event()
                pending = engine.submit(make_batch([[0] * length for length in lengths]), done.set)
                done.wait()
                pending.result()
            engine.close()
    json.dump(compiled, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
