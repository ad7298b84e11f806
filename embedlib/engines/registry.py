"""Which engines can run on this machine, and why not; none of them is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from embedlib.config import Config
from embedlib.engines.gpus import Gpu, list_gpus
from embedlib.errors import EngineUnavailableError
from embedlib.models.compiled.int8 import int8_hardware

_Check = Callable[[Config], "EngineChoice"]
"""Raises where the engine cannot be used."""

MIN_CAPABILITY: Final = (8, 0)
"""Of a GPU: bfloat16 in its matrix units, which came with Ampere."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and whether it can run here."""

    name: str
    is_available: bool
    reason: str
    """Why it can or cannot be used; one line."""
    version: str | None = None
    """Of the library it stands on, where that is installed."""
    devices: tuple[str, ...] = ()
    """What it would run on."""
    gpus: tuple[Gpu, ...] = ()
    """What the devices are, where they are GPUs."""
    hardware: str = ""
    """What lower precisions are computed with; vectors of two of the same name are alike."""


def available_engines(config: Config | None = None) -> list[EngineChoice]:
    """Return every engine, fastest first, with whether it can run here; imports none of them.

    Args:
        config: the devices that are wanted; None: the default options.
    """
    config = config or Config()
    return [
        _checked("tensorrt_llm", _tensorrt_llm, config),
        _checked("cuda", _cuda, config),
        _checked("openvino", _openvino, config),
    ]


def _checked(name: str, check: _Check, config: Config) -> EngineChoice:
    """Return an engine's choice from a function that raises where it cannot be used."""
    try:
        return check(config)
    except EngineUnavailableError as error:
        return EngineChoice(name=name, is_available=False, reason=str(error))


def _openvino(config: Config) -> EngineChoice:
    if importlib.util.find_spec("openvino") is None:
        raise EngineUnavailableError("the package openvino is missing; pip install openvino")
    wanted = config.devices or ("cpu",)
    others = [name for name in wanted if name not in ("cpu", "all")]
    if others:
        raise EngineUnavailableError(f"it computes on the CPU, not on {', '.join(others)}")
    return EngineChoice(
        name="openvino",
        is_available=True,
        reason="runs on any x86-64 or ARM CPU, in float32 or int8",
        version=importlib.metadata.version("openvino"),
        devices=("cpu",) if "all" in wanted else wanted,
        hardware=int8_hardware(),
    )


def _tensorrt_llm(config: Config) -> EngineChoice:
    from embedlib.engines.tensorrt_llm.support import check_version

    if importlib.util.find_spec("tensorrt_llm") is None:
        raise EngineUnavailableError(
            "the package tensorrt-llm is missing; pip install 'embedlib[trtllm]' with NVIDIA's "
            "package index, see docs/engines.md"
        )
    try:
        version = importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    check_version(version)
    gpus = list_gpus()
    _check_any(gpus, config.devices)
    _check_first(config.devices)
    _check_capability(gpus[0])
    others = f", one of {len(gpus)} GPUs here" if len(gpus) > 1 else ""
    return EngineChoice(
        name="tensorrt_llm",
        is_available=True,
        reason=f"runs on cuda:0, {gpus[0].name}{others}, in FP8 or bfloat16",
        version=version,
        devices=("cuda:0",),
        gpus=(gpus[0],),
        hardware=gpus[0].name,
    )


def _cuda(config: Config) -> EngineChoice:
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise EngineUnavailableError(
                f"the package {package} is missing; pip install 'embedlib[cuda]'"
            )
    gpus = list_gpus()
    _check_any(gpus, config.devices)
    wanted = config.devices or ("cuda:0",)
    indices = range(len(gpus)) if "all" in wanted else [gpu_index(name) for name in wanted]
    chosen = tuple(gpus[index] for index in indices)
    for gpu in chosen:
        _check_capability(gpu)
    names = sorted({gpu.name for gpu in chosen})
    return EngineChoice(
        name="cuda",
        is_available=True,
        reason=f"runs on {', '.join(names)}, in FP8 or bfloat16; never tried on a GPU so far",
        version=importlib.metadata.version("torch"),
        devices=tuple(f"cuda:{index}" for index in indices),
        gpus=chosen,
        hardware=" and ".join(names),
    )


def _check_any(gpus: Sequence[Gpu], wanted: Sequence[str]) -> None:
    """Refuse devices that are not there.

    Raises:
        EngineUnavailableError: there is no GPU, or a wanted device is none of them.
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


def _check_first(wanted: Sequence[str]) -> None:
    """Refuse all but the first visible GPU of the process, where `LLM.encode` works.

    Raises:
        EngineUnavailableError: another one was asked for, or several.
    """
    for name in wanted:
        if name not in ("all", "cuda", "cuda:0") or len(wanted) > 1:
            raise EngineUnavailableError(
                "it works on one GPU of a process, the first visible one; set "
                f"CUDA_VISIBLE_DEVICES={gpu_index(name)} and leave device out"
            )


def _check_capability(gpu: Gpu) -> None:
    """Refuse a GPU without bfloat16.

    Raises:
        EngineUnavailableError: it is too old.
    """
    if gpu.compute_capability < MIN_CAPABILITY:
        raise EngineUnavailableError(
            f"{gpu.name} is too old: compute capability "
            f"{version_text(gpu.compute_capability)}, at least {version_text(MIN_CAPABILITY)} is "
            "needed"
        )


def gpu_index(device: str) -> int:
    """Return N of `cuda:N`; `cuda` is the first."""
    return int(device.partition(":")[2] or 0)


def version_text(capability: tuple[int, int]) -> str:
    """Return a compute capability as it is written: 9.0."""
    return f"{capability[0]}.{capability[1]}"
