"""The row of the CUDA engine; imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from embedlib.engines.cuda.capability import (
    ADA_FP8_TORCH,
    check_visible,
    first_two,
    is_fp8_wrong,
)
from embedlib.engines.cuda.limits import (
    LEAST_BATCH_TOKENS,
    batch_room,
    fitting_batch_tokens,
    most_short_tokens,
)
from embedlib.engines.gpu_memory import check_gpus, needed_bytes, room_of
from embedlib.engines.gpus import (
    Gpu,
    check_capability,
    check_wanted,
    gpu_index,
    precisions_text,
    version_text,
)
from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.torch_gpus import torch_index
from embedlib.errors import EngineUnavailableError, first_line
from embedlib.packages.installing import install_line

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

NAME: Final = "cuda"
PACKAGES: Final = ("torch", "triton")
EMULATED_BUCKETS: Final = (16,)
"""Sizes of short batches recorded on a CPU: few, since a recording costs a computation and saves
nothing there."""


def find(config: Config, machine: Machine) -> EngineChoice:
    """Return the GPUs that the options name; the first one if they name none.

    Raises:
        EngineUnavailableError: a package is missing, or a device does not exist or is too old.
    """
    for package in PACKAGES:
        if not machine.has_module(package):
            raise EngineUnavailableError(
                f"it needs an NVIDIA GPU and the package {package}, which is missing; "
                f"{install_line('cuda')}"
            )
    gpus = machine.gpus()
    check_wanted(gpus, config.devices)
    indices, warning = _indices(config.devices or ("cuda:0",), gpus)
    chosen = tuple(gpus[index] for index in indices)
    names = sorted({gpu.name for gpu in chosen})
    return EngineChoice(
        name=NAME,
        is_available=True,
        reason=f"runs on {', '.join(names)}, in {precisions_text(chosen)}",
        version=machine.version("torch"),
        devices=tuple(f"cuda:{index}" for index in indices),
        gpus=chosen,
        hardware=" and ".join(names),
        warning=warning,
    )


def _indices(wanted: Sequence[str], gpus: Sequence[Gpu]) -> tuple[list[int], str]:
    """Return the indices of the wanted GPUs, and a warning about those that "all" leaves out.

    Raises:
        EngineUnavailableError: a GPU is named twice, or is too old; of all, each one is.
    """
    if "all" not in wanted:
        indices = [gpu_index(name) for name in wanted]
        for index in indices:
            if indices.count(index) > 1:
                # Each engine would be checked alone against the memory that all of them share.
                raise EngineUnavailableError(f"cuda:{index} is named twice; name each GPU once")
            check_capability(gpus[index])
        return indices, ""
    usable, reasons = [], []
    for index, gpu in enumerate(gpus):
        try:
            check_capability(gpu)
        except EngineUnavailableError as error:
            reasons.append(f"cuda:{index} is left out, {error}")
        else:
            usable.append(index)
    if not usable:
        raise EngineUnavailableError("; ".join(reasons))
    return usable, f"device = 'all': {'; '.join(reasons)}" if reasons else ""


def check(spec: ModelSpec) -> None:
    """Raise for a model that this engine cannot lower.

    Raises:
        EngineUnsupportedError: the message names the trait.
    """
    from embedlib.engines.cuda.lowering import build_plan

    build_plan(spec)


def check_devices(devices: Sequence[str], gpus: Sequence[Gpu]) -> None:
    """Check that torch and Triton can use GPUs that the driver lists.

    Raises:
        EngineUnavailableError: torch sees other GPUs or none, or Triton cannot compile for them.
    """
    try:
        for device, gpu in zip(devices, gpus, strict=True):
            check_visible(f"cuda:{torch_index(device, gpu)}")
    except (ImportError, OSError, RuntimeError) as error:  # a library of CUDA is missing
        raise EngineUnavailableError(
            f"torch cannot be loaded: {first_line(error)}; {install_line('cuda')}"
        ) from error
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles a small library in C, or finds it cached
    except Exception as error:  # whatever the compiler or Triton's choice of a driver raises
        raise EngineUnavailableError(
            f"Triton cannot compile here: {first_line(error)}; it needs a C compiler (gcc, clang, "
            "or the one that CC names) and the headers of Python"
        ) from error


def check_memory(plan: EnginePlan, files: ModelFiles, config: Config) -> int:
    """Check that the GPUs have the memory and the precision; return the token budget of a batch.

    Raises:
        EngineUnavailableError: the message names the device.
    """
    spec, precision = files.spec, plan.precision
    if precision.name == "fp8":
        _check_torch(plan)
    most_short = most_short_tokens(spec.encoder, precision.name)

    def held(room: int) -> int:
        """Return the tokens whose activations are held, with those of recorded batches."""
        return room + min(room, most_short)

    def fits(room: int) -> bool:
        needed = needed_bytes(spec, precision.name, precision.excluded, held(room))
        return all(needed <= room_of(gpu, config.gpu_memory_fraction) for gpu in plan.gpus)

    budget = config.max_batch_tokens or fitting_batch_tokens(spec, fits)
    check_gpus(plan, spec, config, held(batch_room(spec, budget)))
    return budget


def _check_torch(plan: EnginePlan) -> None:
    """Check that the installed torch computes FP8 on the GPUs that have it.

    Raises:
        EngineUnavailableError: it is too old for one of them.
    """
    if plan.version is None:
        return
    for device, gpu in zip(plan.devices, plan.gpus, strict=True):
        if is_fp8_wrong(gpu.compute_capability, first_two(plan.version)):
            raise EngineUnavailableError(
                f"{device}: FP8 on {gpu.name} needs torch {version_text(ADA_FP8_TORCH)} or later; "
                f"this is {plan.version}; upgrade torch, or take precision = 'bf16'"
            )


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Load an engine directory onto a GPU.

    Raises:
        what `CudaEngine` raises.
    """
    from embedlib.engines.cuda.engine_directory import open_weights
    from embedlib.models.compiled.pooled_rows import POOLED_ROWS
    from embedlib.models.weights.load import load_weights

    folder = plan.precision.folder
    assert folder is not None, "this engine reads engine directories; this is a bug in embedlib"
    if POOLED_ROWS in plan.precision.excluded:
        # Pooled rows read layers in both precisions, so the model's own weights are loaded. Rounded
        # at load, their FP8 is the same as in the directory.
        return lower(files.spec, load_weights(files), plan, config)
    return lower(files.spec, open_weights(files, folder), plan, config)


def lower(spec: ModelSpec, weights: Mapping[str, Any], plan: EnginePlan, config: Config) -> Engine:
    """Load weights in memory onto a GPU; on "cpu" plain torch emulates one."""
    from embedlib.engines.cuda.engine import CudaEngine

    # What `check_memory` found to fit; an emulation was not asked, and small batches do for it.
    budget = cast("int | None", plan.needs) or config.max_batch_tokens or LEAST_BATCH_TOKENS
    return CudaEngine(
        spec,
        weights,
        precision=cast(Any, plan.precision.name),
        excluded=plan.precision.excluded,
        device=_torch_device(plan),
        bucket_tokens=EMULATED_BUCKETS if plan.devices[0] == "cpu" else None,
        max_batch_tokens=budget,
        max_inflight_bulk=config.max_inflight_batches,
        memory_fraction=config.gpu_memory_fraction,
    )


def _torch_device(plan: EnginePlan) -> str:
    """Return the name by which torch knows the device of a plan."""
    if not plan.gpus:  # the emulation on a CPU
        return plan.devices[0]
    return f"cuda:{torch_index(plan.devices[0], plan.gpus[0])}"


def open_weights(files: ModelFiles, folder: Path, plan: EnginePlan) -> Mapping[str, Any]:
    """Return the weights of an engine directory, in the GPU's memory if they leave enough room."""
    from embedlib.engines.cuda.engine_directory import open_weights
    from embedlib.engines.cuda.resident import resident

    weights, device = open_weights(files, folder), _torch_device(plan)
    return weights if device == "cpu" else resident(weights, device)


def check_emulation(spec: ModelSpec, machine: Machine) -> None:
    """Check that plain torch can emulate a model in FP8 on this machine.

    Raises:
        EngineUnavailableError: torch is missing.
        EngineUnsupportedError: the model cannot be computed in FP8.
    """
    if not machine.has_module("torch"):
        raise EngineUnavailableError(
            "precision = 'fp8': no GPU that has it was found, and emulating it takes the package "
            "torch, which is missing; pip install torch"
        )
    from embedlib.engines.cuda.lowering import build_plan
    from embedlib.models.weights.tensor_roles import linear_roles

    build_plan(spec, linear_roles(spec.encoder))


KIND: Final = EngineKind(
    name=NAME,
    precisions=("fp8", "bf16"),
    packages=PACKAGES,
    device_types=("cuda",),
    find=find,
    check=check,
    make=make,
    check_devices=check_devices,
    check_memory=check_memory,
    keeps_pooled_rows=True,
    lower=lower,
    open_weights=open_weights,
    searched_precisions=("fp8",),
    check_emulation=check_emulation,
)
