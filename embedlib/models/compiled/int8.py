"""int8 quantization for CPUs: int8 codes with one float32 scale per output channel."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

INT8_MAX: Final = 127.0
"""-128 is not used, so that every code has its negative."""
SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)
"""A smaller scale would be subnormal, and 1 / scale infinite."""


VNNI_FLAGS: Final = frozenset({"avx512_vnni", "avx_vnni"})
"""x86 CPU flags: with either, OpenVINO rounds activations to int8 too, else keeps them in float32.

Source: `useDynamicQuantizationImpl` of OpenVINO 2026, intel_cpu/src/nodes/executors/dnnl.
"""
CPUINFO: Final = Path("/proc/cpuinfo")


def int8_hardware() -> str:
    """Return the kind of CPU, as far as int8 vectors depend on it, such as "x86_64 with VNNI"."""
    try:
        flags = CPUINFO.read_text(encoding="utf-8").split()
    except OSError:  # not Linux
        flags = []
    return platform.machine() + " with VNNI" * (not VNNI_FLAGS.isdisjoint(flags))


def quantize_rows(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes of a linear layer's weight and the scale of every row.

    Row r is `codes[r] * scales[r]`, off by at most half a scale. Every row is an output channel;
    its largest absolute value becomes 127 or -127, and a row of zeros gets the scale 1.

    Args:
        weight: float32[rows, columns].

    Returns:
        int8[rows, columns] and float32[rows]; a scale is NaN or infinite exactly if its row
        contains NaN or infinity.
    """
    with np.errstate(invalid="ignore"):  # NaN and infinity: the caller rejects the row
        largest = np.maximum(weight.max(axis=1), -weight.min(axis=1))
        scales = np.maximum(largest / np.float32(INT8_MAX), np.float32(SMALLEST_SCALE))
        scales[largest == 0] = 1
        codes = np.rint(weight / scales[:, None])
        return np.clip(codes, -INT8_MAX, INT8_MAX).astype(np.int8), scales
