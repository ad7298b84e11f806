"""Weights that stay on the GPU between engines, for a search that makes many of one model."""

from __future__ import annotations

from typing import Final

import torch

from embedlib.engines.cuda.device_weights import Fp8Matrix
from embedlib.engines.cuda.engine_directory import DirectoryWeights

RESIDENT_SHARE: Final = 1 / 3
"""Share of a GPU's free memory that the model in FP8 may fill between measurements. The rest is for
an engine: its own copies of fused layers, and kept layers, which take twice the bytes; an
estimate."""


def resident(weights: DirectoryWeights, device: str) -> DirectoryWeights:
    """Return the weights of an engine directory in a GPU's memory.

    They are returned unchanged where they would take too much of it.
    """
    free, _ = torch.cuda.mem_get_info(device)
    num_bytes = sum(
        part.nbytes
        for value in weights.values()
        for part in ((value.codes, value.scales) if isinstance(value, Fp8Matrix) else (value,))
    )
    if num_bytes > RESIDENT_SHARE * free:
        return weights
    return {
        role: Fp8Matrix(value.codes.to(device), value.scales.to(device))
        if isinstance(value, Fp8Matrix)
        else value.to(device)
        for role, value in weights.items()
    }
