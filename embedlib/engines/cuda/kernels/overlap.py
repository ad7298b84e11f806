"""Lets a kernel start while the one before it ends: programmatic dependent launch.

A kernel of a query takes a few microseconds, and starting it up to one more. With this attribute a
GPU starts a kernel's blocks as soon as all of those before it run; they wait, by `wait_for_inputs`,
until the kernels before have ended and what these wrote can be read. Every kernel that is launched
so must wait before it touches memory that another kernel writes or reads, or an earlier one could
still be running. Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization".
"""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from embedlib.engines.cuda.capability import HOPPER

FP_FUSION: Final = True
"""Compile a product and the following sum to one instruction with one rounding, which the exponents
of a softmax need. Passed at every launch: Triton's default changes in 3.10, and 3.9 warns of it."""
MIN_DRIVER: Final = 12_030
"""CUDA version of the first driver that records such launches. Source: CUDA C++ Programming Guide,
"Edge Data" of CUDA graphs: since 12.3."""


def launch_options(values: torch.Tensor) -> dict[str, Any]:
    """Return the options and constants that all kernels are launched with.

    Args:
        values: any input of the kernel.
    """
    if _overlaps(values.device):
        return {"OVERLAPS": True, "launch_pdl": True, "enable_fp_fusion": FP_FUSION}
    return {"OVERLAPS": False, "enable_fp_fusion": FP_FUSION}


@cache
def _overlaps(device: torch.device) -> bool:
    # Hopper is what it was measured on.
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return False
    # It is private to torch; where it is missing, kernels start one behind the other.
    version = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return bool(version >= MIN_DRIVER)


@triton.jit
def wait_for_inputs(OVERLAPS: tl.constexpr) -> None:
    """Let the next kernel start, and wait until those before have ended."""
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
