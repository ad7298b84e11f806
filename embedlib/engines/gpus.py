"""The NVIDIA GPUs of this machine and what fits into them, asked without any GPU library."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from embedlib.errors import EngineUnavailableError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.spec import Encoder, ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes

QUERY: Final = "uuid,name,memory.total,memory.free,driver_version,compute_cap"
TIMEOUT_S: Final = 20
MIB: Final = 1 << 20
GIB: Final = 1 << 30

LIBRARY_BYTES: Final = 2 * GIB
"""What torch, the kernels' code and the CUDA context take, whatever the model; an estimate on the
safe side."""
BYTES_PER_NUMBER: Final = 2
"""Activations, and weights that are not FP8, are bfloat16."""
LIVE_ROWS: Final = 8
"""Activations of a layer alive at once, in rows as wide as the hidden size; an estimate."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver describes it."""

    name: str
    total_bytes: int | None
    """None where the driver does not tell."""
    free_bytes: int | None
    driver: str
    compute_capability: tuple[int, int]


def list_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use; `cuda:N` is the N-th of them.

    They are in the order of the bus, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID; where
    all are alike it makes no difference.

    Raises:
        EngineUnavailableError: there is no driver, or it does not answer; the message is a reason
            to be put behind a name.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise EngineUnavailableError("no NVIDIA GPU was found (there is no nvidia-smi)")
    try:
        answer = subprocess.run(
            [tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailableError(
            f"the GPUs are unknown: nvidia-smi failed ({type(error).__name__}); run it to see why"
        ) from error
    rows = [[cell.strip() for cell in row.split(",")] for row in answer.stdout.splitlines()]
    by_uuid = {row[0]: _gpu(row) for row in rows if len(row) == QUERY.count(",") + 1}
    return [by_uuid[uuid] for uuid in _visible(list(by_uuid))]


def needed_bytes(
    spec: ModelSpec, precision: str, excluded: Collection[str], batch_tokens: int
) -> int:
    """Return an estimate of the GPU memory a model needs.

    Args:
        spec: the model.
        precision: "fp8": linear layers of the transformer have a byte per weight.
        excluded: roles of linear layers that stay in bfloat16, and pooled rows that do.
        batch_tokens: tokens of the largest batch.
    """
    weights = 0
    for role, shape in encoder_shapes(spec.encoder).items():
        is_linear = role.startswith("layers.") and len(shape) == 2
        is_fp8 = precision == "fp8" and is_linear and role.removesuffix(".weight") not in excluded
        weights += math.prod(shape) * (1 if is_fp8 else BYTES_PER_NUMBER)
        if is_fp8 and POOLED_ROWS in excluded:  # they read the layer in bfloat16 as well
            weights += math.prod(shape) * BYTES_PER_NUMBER
    return weights + _activation_bytes(spec.encoder, batch_tokens) + LIBRARY_BYTES


def check_room(gpu: Gpu, needed: int, fraction: float) -> None:
    """Refuse a GPU that a model does not fit into.

    Raises:
        EngineUnavailableError: it is too small, or others use it.
    """
    if gpu.total_bytes is None or gpu.free_bytes is None:
        return
    allowed = gpu.total_bytes * fraction
    room = min(allowed, gpu.free_bytes)
    if needed > room:
        raise EngineUnavailableError(
            f"the model needs about {needed / GIB:.1f} GiB; {gpu.name} has "
            f"{gpu.total_bytes / GIB:.1f} GiB, {gpu.free_bytes / GIB:.1f} GiB free, of which "
            f"gpu_memory_fraction = {fraction:g} allows {allowed / GIB:.1f} GiB"
        )


def _activation_bytes(encoder: Encoder, batch_tokens: int) -> int:
    width = LIVE_ROWS * encoder.hidden_size + 2 * encoder.intermediate_size
    return batch_tokens * width * BYTES_PER_NUMBER


def _gpu(row: list[str]) -> Gpu:
    _, name, total, free, driver, capability = row
    major, _, minor = capability.partition(".")
    return Gpu(
        name=name,
        total_bytes=int(total) * MIB if total.isdigit() else None,
        free_bytes=int(free) * MIB if free.isdigit() else None,
        driver=driver,
        compute_capability=(int(major), int(minor)) if major.isdigit() else (0, 0),
    )


def _visible(uuids: list[str]) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    Source: CUDA C++ Programming Guide, environment variables: numbers or the beginnings of names;
    what stands behind one that does not exist is not seen either.
    """
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return uuids
    visible = []
    for entry in setting.split(","):
        entry = entry.strip()
        if entry.isdigit():
            found = uuids[int(entry) : int(entry) + 1]
        else:
            found = [uuid for uuid in uuids if entry and uuid.startswith(entry)][:1]
        if not found:
            break
        visible += found
    return visible
