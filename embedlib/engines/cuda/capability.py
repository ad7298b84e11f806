"""Which precisions a GPU has, and whether this torch computes them on it; loads torch late."""

from __future__ import annotations

from typing import Final

from embedlib.engines.gpus import version_text
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError

MIN_CAPABILITY: Final = {"fp8": (8, 9), "bf16": (8, 0), "fp16": (7, 5), "float32": (7, 5)}
"""Lowest compute capability by precision. Source: CUDA C++ Programming Guide, table "Feature
support per compute capability"; Triton 3 requires 7.5."""
HOPPER: Final = (9, 0)
"""Compute capability of the H100 and H200. Source: as above."""
ADA_FP8_TORCH: Final = (2, 12)
"""On GPUs older than Hopper, earlier versions of torch launch FP8 products with a scale per row on
the default stream, whatever the current stream: they run beside our stream, before their input is
written, and are missing from recordings. Source: https://github.com/pytorch/pytorch/issues/177651.
"""


def check_visible(name: str) -> None:
    """Check that torch can use a GPU.

    Raises:
        EngineUnavailableError: the device does not exist, or this torch does not see it.
    """
    import torch

    if not torch.cuda.is_available():
        raise EngineUnavailableError(
            f"device = {name!r}: torch {torch.__version__} sees no NVIDIA GPU; check nvidia-smi, "
            "that torch was built with CUDA (torch.version.cuda), and that the driver is new enough"
        )
    index = torch.device(name).index
    if index is not None and index >= torch.cuda.device_count():
        raise EngineUnavailableError(
            f"device = {name!r}: torch sees only {torch.cuda.device_count()} NVIDIA GPUs"
        )


def torch_version() -> tuple[int, int]:
    """Return the first two numbers of torch's version."""
    import torch

    return first_two(torch.__version__)


def first_two(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as 2.11.0+cu130."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_fp8_wrong(capability: tuple[int, int], version: tuple[int, int]) -> bool:
    """Return whether a GPU has FP8, and a version of torch computes it wrongly there."""
    return MIN_CAPABILITY["fp8"] <= capability < HOPPER and version < ADA_FP8_TORCH


def check_capability(capability: tuple[int, int], precision: str, version: tuple[int, int]) -> None:
    """Reject a precision that the GPU does not support, or that this torch computes wrongly on it.

    Args:
        capability: compute capability of the GPU.
        precision: of the linear layers.
        version: torch's version.

    Raises:
        EngineUnsupportedError: the GPU or torch is too old for the precision.
    """
    least = MIN_CAPABILITY[precision]
    if capability < least:
        can = ", ".join(name for name, needed in MIN_CAPABILITY.items() if capability >= needed)
        raise EngineUnsupportedError(
            f"engine cuda: precision = {precision!r} needs a GPU of compute capability "
            f"{version_text(least)}; this one has {version_text(capability)}, which supports: "
            f"{can or 'none'}"
        )
    if precision == "fp8" and is_fp8_wrong(capability, version):
        raise EngineUnsupportedError(
            f"engine cuda: precision = 'fp8' on compute capability {version_text(capability)} "
            f"needs torch {version_text(ADA_FP8_TORCH)} or later; this is "
            f"{version_text(version)}; use precision='bf16'"
        )
