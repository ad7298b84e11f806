"""The row of the TensorRT-LLM engine; imports neither TensorRT-LLM nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embedlib.engines.gpu_memory import check_gpus
from embedlib.engines.gpus import (
    Gpu,
    check_capability,
    check_wanted,
    gpu_index,
    precisions_text,
)
from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.torch_gpus import torch_index
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError
from embedlib.packages.installing import install_line

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

NAME: Final = "tensorrt_llm"
PACKAGE: Final = "tensorrt_llm"
DEVICE: Final = "cuda:0"


def find(config: Config, machine: Machine) -> EngineChoice:
    """Return the first GPU of the process, the only one that this engine supports.

    Raises:
        EngineUnavailableError: the package is missing or too old, or there is no such GPU.
    """
    from embedlib.engines.tensorrt_llm.support import check_version

    if not machine.has_module(PACKAGE):
        raise EngineUnavailableError(
            "it needs an NVIDIA GPU and the package tensorrt-llm, which is missing; "
            f"{install_line('trtllm')} with NVIDIA's package index, see docs/engines.md"
        )
    version = machine.version(PACKAGE) or "unknown"
    check_version(version)
    gpus = machine.gpus()
    check_wanted(gpus, config.devices)
    _check_first(config.devices)
    check_capability(gpus[0])
    others = f", one of {len(gpus)} GPUs here" if len(gpus) > 1 else ""
    return EngineChoice(
        name=NAME,
        is_available=True,
        reason=f"runs on {DEVICE}, {gpus[0].name}{others}, in {precisions_text(gpus[:1])}",
        version=version,
        devices=(DEVICE,),
        gpus=(gpus[0],),
        hardware=gpus[0].name,
        warning=_warning(config, gpus),
    )


def _warning(config: Config, gpus: Sequence[Gpu]) -> str:
    if "all" not in config.devices or len(gpus) == 1:
        return ""
    return (
        f"device = 'all': TensorRT-LLM works on one GPU of a process, {DEVICE}; start a process "
        "for each of the others, with CUDA_VISIBLE_DEVICES"
    )


def _check_first(wanted: Sequence[str]) -> None:
    """Check that the options name only the first visible GPU, the one that `LLM.encode` supports.

    Raises:
        EngineUnavailableError: they name another GPU, or several.
    """
    for name in wanted:
        if name not in ("all", "cuda", DEVICE) or len(wanted) > 1:
            raise EngineUnavailableError(
                "it works on one GPU of a process, the first visible one; set "
                f"CUDA_VISIBLE_DEVICES={gpu_index(name)} and leave device out"
            )


def check(spec: ModelSpec) -> None:
    """Raise for a model with a trait that this engine does not support.

    Raises:
        EngineUnsupportedError: the message names all such traits.
    """
    from embedlib.engines.tensorrt_llm.support import check_supported

    check_supported(spec)


def check_devices(devices: Sequence[str], gpus: Sequence[Gpu]) -> None:
    """Check that TensorRT-LLM can be loaded, and works on the GPU that was chosen.

    Raises:
        EngineUnavailableError: it cannot, or works on another one.
    """
    from embedlib.engines.tensorrt_llm.runtime import load_library

    load_library()
    if torch_index(DEVICE, gpus[0]) != 0:
        raise EngineUnavailableError(
            f"it works on the first GPU of CUDA, which is not {gpus[0].name}, the first one in bus "
            "order; set CUDA_DEVICE_ORDER=PCI_BUS_ID before the program starts"
        )


def check_memory(plan: EnginePlan, files: ModelFiles, config: Config) -> None:
    """Check that the GPU has the memory and the precision for the model.

    Raises:
        EngineUnavailableError: the message names the device.
    """
    from embedlib.engines.tensorrt_llm.support import batch_tokens

    spec = files.spec
    check_gpus(plan, spec, config, batch_tokens(spec, config.max_batch_tokens))


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Load an engine directory onto the GPU.

    Raises:
        what `TensorRTLLMEngine` raises.
    """
    # A late import: the library is heavy.
    from embedlib.engines.tensorrt_llm.engine import TensorRTLLMEngine

    folder = plan.precision.folder
    assert folder is not None, "this engine reads engine directories; this is a bug in embedlib"
    if not folder.is_dir():
        raise EngineUnsupportedError(
            f"engine {NAME} reads folders, and {folder} is in a pack; unzip the pack and pass the "
            "folder"
        )
    return TensorRTLLMEngine(
        files,
        folder,
        excluded=plan.precision.excluded,
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        gpu_memory_fraction=config.gpu_memory_fraction,
        cache_dir=config.engine_cache_path / NAME,
    )


KIND: Final = EngineKind(
    name=NAME,
    precisions=("fp8", "bf16"),
    packages=(PACKAGE,),
    device_types=("cuda",),
    find=find,
    check=check,
    make=make,
    check_devices=check_devices,
    check_memory=check_memory,
    reads_packs=False,
)
