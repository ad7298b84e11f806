"""The NVIDIA GPUs of this machine, and whether a model fits into them; uses no GPU library."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from embedlib.errors import EngineUnavailableError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.spec import Encoder, ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles

QUERY: Final = "uuid,name,memory.total,memory.free,driver_version,compute_cap"
TIMEOUT_S: Final = 20
MIB: Final = 1 << 20
GIB: Final = 1 << 30

MIN_CAPABILITY: Final = (8, 0)
"""Compute capability from which the matrix units compute in bfloat16: Ampere."""
MIN_FP8_CAPABILITY: Final = (8, 9)
"""Compute capability from which the matrix units compute in FP8: Ada."""
LIBRARY_BYTES: Final = 2 * GIB
"""Memory of torch, the kernels' code and the CUDA context, whatever the model; a safe estimate."""
BYTES_PER_NUMBER: Final = 2
"""Activations, and weights that are not FP8, are bfloat16."""
LIVE_ROWS: Final = 8
"""Activations of a layer in memory at once, in rows of the hidden size; an estimate."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver describes it."""

    name: str
    total_bytes: int | None
    """None if the driver does not report it."""
    free_bytes: int | None
    driver: str
    compute_capability: tuple[int, int]

    @property
    def has_fp8(self) -> bool:
        """Whether its matrix units compute in FP8."""
        return self.compute_capability >= MIN_FP8_CAPABILITY


def list_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use; `cuda:N` is the N-th of them.

    They are in bus order, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID; between GPUs of
    one model the order makes no difference.

    Raises:
        EngineUnavailableError: there is no driver, or it does not respond; the message is only the
            reason, which follows an engine's name.
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
        precision: "fp8": linear layers of the transformer take one byte per weight.
        excluded: roles of linear layers that stay in bfloat16, and pooled rows that do.
        batch_tokens: tokens of the largest batch.
    """
    weights = 0
    linear = linear_roles(spec.encoder) if precision == "fp8" else ()
    fp8 = {f"{role}.weight" for role in linear if role not in excluded}
    for role, shape in encoder_shapes(spec.encoder).items():
        is_fp8 = role in fp8
        weights += math.prod(shape) * (1 if is_fp8 else BYTES_PER_NUMBER)
        if is_fp8 and POOLED_ROWS in excluded:  # pooled rows read the layer in bfloat16 as well
            weights += math.prod(shape) * BYTES_PER_NUMBER
    return weights + _activation_bytes(spec.encoder, batch_tokens) + LIBRARY_BYTES


def check_room(gpu: Gpu, needed: int, fraction: float) -> None:
    """Check that a model fits into a GPU.

    Raises:
        EngineUnavailableError: the GPU is too small, or other programs use its memory.
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


def check_gpus(
    devices: Sequence[str],
    gpus: Sequence[Gpu],
    precision: str,
    needed: int,
    fraction: float,
) -> None:
    """Check that GPUs have the precision and the memory for a model.

    Args:
        devices: names of the devices.
        gpus: the GPU of each device.
        precision: the precision of the model.
        needed: bytes that the model needs, see `needed_bytes`.
        fraction: share of a GPU's memory that it may use.

    Raises:
        EngineUnavailableError: the message names the device.
    """
    for device, gpu in zip(devices, gpus, strict=True):
        if precision == "fp8":
            check_fp8(device, gpu)
        try:
            check_room(gpu, needed, fraction)
        except EngineUnavailableError as error:
            raise EngineUnavailableError(f"{device}: {error}") from error


def check_wanted(gpus: Sequence[Gpu], wanted: Sequence[str]) -> None:
    """Check that the devices of the options exist.

    Raises:
        EngineUnavailableError: there is no GPU, or a device is not one of them.
    """
    if not gpus:
        raise EngineUnavailableError(
            "no NVIDIA GPU was found (nvidia-smi and CUDA_VISIBLE_DEVICES leave none)"
        )
    for name in wanted:
        if name == "cpu":
            raise EngineUnavailableError("it computes on NVIDIA GPUs, not on cpu")
        if name != "all" and gpu_index(name) >= len(gpus):
            raise EngineUnavailableError(
                f"there is no {name}; this process sees {len(gpus)} GPUs, from cuda:0 on"
            )


def check_capability(gpu: Gpu) -> None:
    """Check that a GPU computes in bfloat16.

    Raises:
        EngineUnavailableError: it is too old.
    """
    if gpu.compute_capability < MIN_CAPABILITY:
        raise EngineUnavailableError(
            f"{gpu.name} is too old: compute capability "
            f"{_version_text(gpu.compute_capability)}, at least {_version_text(MIN_CAPABILITY)} is "
            "needed"
        )


def check_fp8(device: str, gpu: Gpu) -> None:
    """Check that a GPU computes in FP8.

    Raises:
        EngineUnavailableError: it does not.
    """
    if not gpu.has_fp8:
        raise EngineUnavailableError(
            f"{device}: {gpu.name} has no FP8 (compute capability "
            f"{_version_text(gpu.compute_capability)}, FP8 needs "
            f"{_version_text(MIN_FP8_CAPABILITY)}); precision = 'bf16' runs on it"
        )


def gpu_index(device: str) -> int:
    """Return N of `cuda:N`; `cuda` is the first."""
    return int(device.partition(":")[2] or 0)


def _version_text(capability: tuple[int, int]) -> str:
    """Return a compute capability as text: 9.0."""
    return f"{capability[0]}.{capability[1]}"


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

    Source: CUDA C++ Programming Guide, environment variables: entries are indices or prefixes of
    UUIDs; CUDA ignores every entry from the first invalid one on.
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
