"""The GPU's own limits: products in a model's shapes, and copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any, Final

import numpy as np
import torch

from tests.acceptance.gpu.models import shape_of
from tests.acceptance.gpu.texts import linear_shapes

ROWS: Final = (16, 64, 512, 2048, 8192, 16_384)
TINY_ROWS: Final = (16, 64)
REPEATS: Final = 20
HEAD_START_CYCLES: Final = 2_000_000
"""A millisecond of doing nothing, in which the host launches what is timed: it takes some 20 us for
each, longer than a small product is computed, whose time would be that of its launch otherwise."""
FLUSH_BYTES: Final = 1 << 28
"""Weights of so much in turn: more than any cache keeps."""
TINY_FLUSH_BYTES: Final = 1 << 16

Result = dict[str, Any]


class ChipCalls:
    """The calls that the parent can make."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._is_tiny = device == "cpu"
        self._flush_bytes = TINY_FLUSH_BYTES if self._is_tiny else FLUSH_BYTES

    def versions(self) -> Result:
        """Return what computes."""
        found = {"torch": torch.__version__, "device": str(self._device)}
        if self._device.type == "cuda":
            found["device"] = torch.cuda.get_device_name(self._device)
            found["cuda"] = torch.version.cuda
        return found

    def products(self, model: str, index: int) -> list[Result]:
        """Return the rates of one of a layer's products, for several numbers of rows.

        A way of multiplying that this torch or this GPU has not costs no other one its time.
        """
        encoder = shape_of(model, is_tiny=self._is_tiny).spec.encoder
        columns, inputs = linear_shapes(encoder)[index]
        found = []
        for rows in TINY_ROWS if self._is_tiny else ROWS:
            for name, product in self._ways(rows, columns, inputs):
                facts: Result = {"what": name, "shape": [rows, columns, inputs]}
                try:
                    rate = 2 * rows * columns * inputs / self._median_s(product) / 1e12
                    found.append({**facts, "tflops": rate})
                except RuntimeError as error:
                    lines = str(error).splitlines() or [type(error).__name__]
                    found.append({**facts, "failed": lines[0]})
        return found

    def copy(self) -> Result:
        """Return the rate of a copy on the device."""
        source = torch.randn(self._flush_bytes, device=self._device)
        target = torch.empty_like(source)
        rate = 2 * source.nbytes / self._median_s(partial(target.copy_, source)) / 1e12
        return {"what": "copy, read and written", "tbytes_per_s": rate}

    def sustained(self, model: str, seconds: float) -> Result:
        """Return the FP8 rate of the largest product after a while, when the chip is warm."""
        encoder = shape_of(model, is_tiny=self._is_tiny).spec.encoder
        columns, inputs = max(linear_shapes(encoder), key=lambda shape: shape[0] * shape[1])
        rows = TINY_ROWS[-1] if self._is_tiny else ROWS[-1]
        ways = dict(self._ways(rows, columns, inputs))
        name = "fp8, scales of rows, fast sum"
        end = time.perf_counter() + seconds
        took = self._median_s(ways[name])
        while time.perf_counter() < end:
            took = self._median_s(ways[name])
        rate = 2 * rows * columns * inputs / took / 1e12
        shape = [rows, columns, inputs]
        what = f"{name}, after {seconds:.0f} s"
        return {"what": what, "is_sustained": True, "shape": shape, "tflops": rate}

    def _ways(
        self, rows: int, columns: int, inputs: int
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield a name and a call that multiplies with another weight each time."""
        count = max(1, self._flush_bytes // (columns * inputs))
        source = torch.randn(rows, inputs, device=self._device).to(torch.bfloat16)
        plain = [
            torch.randn(columns, inputs, device=self._device).to(torch.bfloat16)
            for _ in range(count)
        ]
        weights = cycle(plain)
        yield "bf16", lambda: torch.mm(source, next(weights).t())
        codes = source.to(torch.float8_e4m3fn)
        fp8_weights = cycle([weight.to(torch.float8_e4m3fn) for weight in plain])
        one = torch.ones((), device=self._device)
        of_rows = torch.ones(rows, 1, device=self._device), one.expand(1, columns).clone()
        ways = {"fp8, scales of rows": of_rows, "fp8, one scale": (one, one)}
        for name, scales in ways.items():
            for is_fast in (True, False):
                call = partial(_scaled_mm, codes, fp8_weights, scales, is_fast)
                yield f"{name}, {'fast' if is_fast else 'exact'} sum", call

    def _median_s(self, launch: Callable[[], object]) -> float:
        """Return the median of a launch, in seconds."""
        for _ in range(3):
            launch()
        if self._device.type == "cuda":
            torch.cuda._sleep(HEAD_START_CYCLES)
        times = [self._timed(launch) for _ in range(REPEATS)]
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(np.median([taken() for taken in times]))

    def _timed(self, launch: Callable[[], object]) -> Callable[[], float]:
        """Launch, and return a function that returns the seconds once the device is done."""
        if self._device.type != "cuda":
            begin = time.perf_counter()
            launch()
            taken = time.perf_counter() - begin
            return lambda: taken
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        return lambda: float(start.elapsed_time(end)) / 1e3


def _scaled_mm(
    codes: torch.Tensor,
    weights: Iterator[torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    is_fast: bool,
) -> torch.Tensor:
    return torch._scaled_mm(
        codes, next(weights).t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=is_fast
    )
