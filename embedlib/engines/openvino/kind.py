"""The row of the CPU engine; imports no openvino."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.machine import AMX_FLAGS, BF16_FLAGS, VNNI_FLAGS
from embedlib.engines.openvino.plans.planning import (
    choose_profile,
    describe_memory,
    needs_of,
    profile_key,
    shares_lanes,
)
from embedlib.engines.openvino.sizes.number_types import number_type
from embedlib.errors import EngineUnavailableError
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.engines.openvino.plans.memory import MemoryNeeds
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import Encoder, ModelSpec

NAME: Final = "openvino"
PRECISIONS: Final = (*INT8_GROUPS, "bf16", "float32")
COARSER_FORMS: Final[Mapping[str, str]] = {"int8-g128": "int8"}


def find(config: Config, machine: Machine) -> EngineChoice:
    """Return the device "cpu", as many times as the options list it.

    Raises:
        EngineUnavailableError: the package is missing, the options name another device, or the CPU
            lacks the instructions of the precision.
    """
    if not machine.has_module("openvino"):
        raise EngineUnavailableError("the package openvino is missing; pip install openvino")
    wanted = config.devices or ("cpu",)
    others = [name for name in wanted if name not in ("cpu", "all")]
    if others:
        raise EngineUnavailableError(f"it computes on the CPU, not on {', '.join(others)}")
    _check_instructions(config.precision, machine.cpu_features())
    devices = ("cpu",) if "all" in wanted else wanted
    return EngineChoice(
        name=NAME,
        is_available=True,
        reason=f"runs on any x86-64 or ARM CPU, in float32 or int8{_bf16(machine)}",
        version=machine.version("openvino"),
        devices=devices,
        hardware=machine.cpu_hardware(),
        cpu_features=machine.cpu_features(),
        memory=machine.memory().for_each_of(len(devices)),
    )


def _check_instructions(precision: str, cpu_features: frozenset[str]) -> None:
    """Raise EngineUnavailableError if the CPU lacks the instructions of a precision."""
    if precision == "bf16" and cpu_features.isdisjoint(BF16_FLAGS):
        names = " or ".join(BF16_FLAGS.values())
        raise EngineUnavailableError(
            f"this CPU does not compute in bf16, which needs {names}; use precision='float32' or "
            "'int8'"
        )


def _check_groups(precision: str, encoder: Encoder) -> None:
    """Raise EngineUnavailableError if a coarser form of int8 divides rows less than int8 does.

    They would have one scale each, which is slower and still coarser.
    """
    if precision not in COARSER_FORMS:
        return
    group, closer = INT8_GROUPS[precision], COARSER_FORMS[precision]
    shapes = encoder_shapes(encoder)
    for role in linear_roles(encoder):
        columns = shapes[f"{role}.weight"][1]
        if columns > group and columns % group and columns % INT8_GROUPS[closer] == 0:
            raise EngineUnavailableError(
                f"{role} of this model has {columns} inputs, which cannot be divided by {group}, "
                f"as {precision} does; use precision={closer!r}"
            )


def _bf16(machine: Machine) -> str:
    instructions = machine.bf16_instructions()
    return "" if instructions is None else f", or in bf16 ({instructions})"


def check(spec: ModelSpec) -> None:
    """Accept every model: this engine is the reference and has every trait of a spec."""


def check_memory(plan: EnginePlan, files: ModelFiles, config: Config) -> MemoryNeeds:
    """Check that CPU and model have the precision, the process the memory; return what it needs.

    Raises:
        EngineUnavailableError: the message says what is lacking, and which precision would do.
    """
    _check_instructions(plan.precision.name, plan.cpu_features)
    _check_groups(plan.precision.name, files.spec.encoder)
    from embedlib.engines.openvino.plans.remedies import remedy

    needed = needs_of(plan, files, config)
    shortage = plan.memory.shortage(needed.shared, needed.files)
    if shortage is None:
        return needed
    amount, told, limit = shortage
    if plan.is_by_layer:
        raise EngineUnavailableError(
            f"engine openvino: {files.folder} needs about {amount} in float32 with one layer at a "
            f"time, and this process can have {told}; {limit.remedy}, or use shorter texts"
        )
    raise EngineUnavailableError(
        f"engine openvino: {files.folder} needs about {amount} in {plan.precision}, and this "
        f"process can have {told}; {remedy(files, config, plan.precision, plan.memory, limit)}"
    )


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Compile the graph with the model's own weights, or with those of an engine directory.

    Both lanes share one compiled model if two would take much more memory than the weights.

    Raises:
        EngineUnsupportedError: the engine directory lacks the head.
        EngineBuildError: OpenVINO cannot compile the graph.
    """
    # A late import: the library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.engines.openvino.plans.layout import Layout
    from embedlib.engines.openvino.stored import (
        compiled_weights,
        model_cache,
        multiplies_16_bits,
        own_weights,
    )

    needs = needs_of(plan, files, config)
    profile = plan.profile or choose_profile(plan, files, config, None)
    folder, place = plan.precision.folder, config.engine_cache_path / NAME
    if folder is not None:
        weights = compiled_weights(files, folder)
    else:
        weights = own_weights(files, needs, place, config)
    is_narrow = multiplies_16_bits(weights, files.spec.encoder)
    return OpenVINOEngine(
        files.spec,
        weights,
        Layout(
            threads=config.num_threads,
            max_batch_tokens=config.max_batch_tokens or profile.max_batch_tokens,
            max_inflight_bulk=config.max_inflight_batches,
            shares_lanes=profile.shares_lanes,
            precision=number_type(plan.precision.name),
            activation_group=INT8_GROUPS.get(plan.precision.name),
            is_large=needs.is_large,
            is_narrow=is_narrow,
            num_streams=profile.num_streams,
            library=profile.library,
        ),
        model_cache(
            *(place, files, weights, plan.precision, needs, config),
            is_narrow=is_narrow,
            shares_lanes=profile.shares_lanes,
        ),
    )


def lower(spec: ModelSpec, weights: Mapping[str, Any], plan: EnginePlan, config: Config) -> Engine:
    """Compile the graph with weights in memory; caches no compiled graph on disk.

    Laid out in memory as the plan says; one that was not asked for is for a model of any size.
    """
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.engines.openvino.layerwise import LayerwiseEngine
    from embedlib.engines.openvino.plans.layout import Layout
    from embedlib.engines.openvino.plans.memory import MAX_BATCH_TOKENS, MemoryNeeds

    needs = plan.needs if isinstance(plan.needs, MemoryNeeds) else None
    budget = MAX_BATCH_TOKENS if plan.is_by_layer else None
    layout = Layout(
        threads=config.num_threads,
        max_batch_tokens=config.max_batch_tokens or budget,
        shares_lanes=plan.is_by_layer or (needs is not None and shares_lanes(plan, needs)),
        precision=number_type(plan.precision.name),
        activation_group=INT8_GROUPS.get(plan.precision.name),
        is_large=needs is not None and needs.is_large,
    )
    make = LayerwiseEngine if plan.is_by_layer else OpenVINOEngine
    return make(spec, weights, layout)


def open_weights(files: ModelFiles, folder: Path, plan: EnginePlan) -> Mapping[str, Any]:
    """Map the weights of an int8 engine directory."""
    from embedlib.models.compiled.cache import int8_weights

    return int8_weights(folder)


def forget_process(process: int, config: Config) -> None:
    """Remove what a killed process has left in the cache of compiled models."""
    from embedlib.engines.openvino.kept.model_cache import forget_trials

    forget_trials(config.engine_cache_path / NAME, process)


KIND: Final = EngineKind(
    name=NAME,
    precisions=PRECISIONS,
    packages=("openvino",),
    device_types=("cpu",),
    find=find,
    check=check,
    make=make,
    check_memory=check_memory,
    profile_key=profile_key,
    choose_profile=choose_profile,
    describe_memory=describe_memory,
    faster_with={**dict.fromkeys(INT8_GROUPS, VNNI_FLAGS), "bf16": frozenset(BF16_FLAGS)},
    fastest_with={"bf16": AMX_FLAGS},
    can_per_token=True,
    can_splade=True,
    can_by_layer=True,
    lower=lower,
    open_weights=open_weights,
    forget_process=forget_process,
    searched_precisions=tuple(INT8_GROUPS),
    coarser_forms=COARSER_FORMS,
    computed_precisions=frozenset({"bf16", "float32"}),
)
