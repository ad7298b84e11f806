"""The row of the CPU engine; imports no openvino."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.machine import BF16_FLAGS, VNNI_FLAGS
from embedlib.engines.openvino.number_types import number_type
from embedlib.engines.profile import Profile, ProfileKey
from embedlib.errors import EngineUnavailableError
from embedlib.memory import Memory, gib
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles
from embedlib.version import __version__

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.engines.openvino.memory import MemoryNeeds
    from embedlib.engines.openvino.model_cache import ModelCache
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import Encoder, ModelSpec

NAME: Final = "openvino"
PRECISIONS: Final = (*INT8_GROUPS, "bf16", "float32")
COARSER_FORMS: Final[Mapping[str, str]] = {"int8-g128": "int8"}
MOST_KEPT_BYTES: Final = 1 << 30
"""Of int8 matrices that are kept with a graph."""


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


def check_memory(
    plan: EnginePlan, choice: EngineChoice, files: ModelFiles, config: Config
) -> MemoryNeeds:
    """Check that CPU and model have the precision, the process the memory; return what it needs.

    Raises:
        EngineUnavailableError: the message says what is lacking, and which precision would do.
    """
    _check_instructions(plan.precision.name, choice.cpu_features)
    _check_groups(plan.precision.name, files.spec.encoder)
    from embedlib.engines.openvino.remedies import remedy

    needed = _needs(plan, files, config)
    limit = _room(plan).too_small(needed.shared, needed.files)
    if limit is None:
        return needed
    if plan.is_by_layer:
        raise EngineUnavailableError(
            f"engine openvino: {files.folder} needs about {gib(needed.shared)} of memory in "
            f"float32 with one layer at a time, and this process can have {limit}; use a machine "
            "with more memory, or shorter texts"
        )
    raise EngineUnavailableError(
        f"engine openvino: {files.folder} needs about {gib(needed.shared)} of memory in "
        f"{plan.precision}, and this process can have {limit}; "
        f"{remedy(files, config, plan.precision, _room(plan))}"
    )


def _room(plan: EnginePlan) -> Memory:
    return plan.memory or Memory()


def _needs(plan: EnginePlan, files: ModelFiles, config: Config) -> MemoryNeeds:
    from embedlib.engines.openvino.float32_copy import pays
    from embedlib.engines.openvino.memory import MemoryNeeds, layerwise_needs, memory_needs

    if plan.is_by_layer:
        return layerwise_needs(files, config)
    if isinstance(plan.needs, MemoryNeeds) and plan.needs.precision == str(plan.precision):
        return plan.needs
    needs = memory_needs(files, plan.precision, config, is_copied=pays(plan.precision))
    if needs.is_copied and _room(plan).too_small(needs.shared, needs.files) is not None:
        return memory_needs(files, plan.precision, config)
    return needs


def describe_memory(plan: EnginePlan, files: ModelFiles, config: Config) -> str:
    """Return one line: what a precision needs, and whether the process can have it."""
    needs = _needs(plan, files, config)
    limit = _room(plan).too_small(needs.shared, needs.files)
    shares = _shares_lanes(plan, needs)
    told = gib(needs.shared if shares else needs.separate)
    if limit is not None:
        verdict = f"no, this process can have {limit}"
    elif shares:
        verdict = "yes, both lanes share a compiled model"
    else:
        verdict = f"yes, with a compiled model for each lane; {gib(needs.shared)} with one for both"
    return f"needs about {told} for {gib(needs.weights)} of weights: {verdict}"


def _shares_lanes(plan: EnginePlan, needs: MemoryNeeds) -> bool:
    """Return whether a compiled model of each lane would take too much memory."""
    is_too_large = _room(plan).too_small(needs.separate, needs.files) is not None
    return is_too_large or not needs.may_be_separate


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Compile the graph with the model's own weights, or with those of an engine directory.

    Both lanes share one compiled model if two would take much more memory than the weights.

    Raises:
        EngineUnsupportedError: the engine directory lacks the head.
        EngineBuildError: OpenVINO cannot compile the graph.
    """
    # A late import: the library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.engines.openvino.layout import Layout, spare_tokens
    from embedlib.engines.openvino.stored import (
        compiled_weights,
        multiplies_16_bits,
        own_weights,
    )

    needs = _needs(plan, files, config)
    profile = plan.profile or choose_profile(plan, files, config, None)
    folder = plan.precision.folder
    if folder is not None:
        weights = compiled_weights(files, folder)
    else:
        copies = config.engine_cache_path / NAME if needs.is_copied else None
        weights = own_weights(files, copies, config)
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
            is_narrow=multiplies_16_bits(weights, files.spec.encoder),
            spare_tokens=spare_tokens(files.spec.encoder, plan.precision.name),
            num_streams=profile.num_streams,
            library=profile.library,
        ),
        _cache(plan, files, config, weights),
    )


def _cache(
    plan: EnginePlan, files: ModelFiles, config: Config, weights: Mapping[str, Any]
) -> ModelCache | None:
    """Return where compiled models are kept.

    Of a large model the graph alone, since a copy of its weights would be as slow to load. What is
    stored in float32 is packed by the import: if the graph has one stage, file and packed copy
    would be in memory. Matrices in int8 are kept with the graph, so it is not kept where they would
    fill the disk.
    """
    from embedlib.engines.openvino.stored import (
        cache_of_graphs,
        cache_of_models,
        multiplies_16_bits,
    )

    place = config.engine_cache_path / NAME
    needs = _needs(plan, files, config)
    if not needs.is_large:
        return cache_of_models(place, files, plan.precision.folder, config)
    if plan.precision.name in INT8_GROUPS and needs.packed > MOST_KEPT_BYTES:
        return None
    is_narrow = multiplies_16_bits(weights, files.spec.encoder)
    is_float32 = plan.precision.name == "float32" and not is_narrow
    profile = plan.profile or choose_profile(plan, files, config, None)
    if is_float32 and not profile.shares_lanes:
        return None
    return cache_of_graphs(place, weights, is_packed_at_once=is_float32)


def profile_key(
    plan: EnginePlan, files: ModelFiles, config: Config, machine: Machine
) -> ProfileKey:
    """Return what a profile is valid for: models of the same layers, on CPUs of this kind."""
    from embedlib.engines.openvino.float32_copy import stores_16_bits

    encoder = files.spec.encoder
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
    more = ("intermediate_size", "is_gated", "is_causal")
    shape = {name: getattr(encoder, name) for name in (*names, *more)}
    stored = plan.precision.folder or files.transformer_dir
    is_narrow = stores_16_bits(stored) and not _needs(plan, files, config).is_copied
    return ProfileKey(
        engine=NAME,
        precision=plan.precision.name,
        shape={**shape, "max_seq_tokens": files.spec.max_seq_tokens}
        | {"stores_16_bits": is_narrow, "excluded": sorted(plan.precision.excluded)},
        machine={"cpu": list(machine.cpu_identity()), "threads": config.num_threads},
        versions={"embedlib": __version__, "openvino": machine.version("openvino")},
    )


def choose_profile(
    plan: EnginePlan, files: ModelFiles, config: Config, found: Profile | None
) -> Profile:
    """Return how to compute: as the options say, then as was measured, then by rule.

    What was measured is not taken where the memory that is left now does not allow it.

    Args:
        plan: says which memory is left.
        files: the model.
        config: the options.
        found: what was measured; None: nothing.
    """
    from embedlib.engines.openvino.memory import MAX_BATCH_TOKENS, SHARED_BATCH_TOKENS

    needs = _needs(plan, files, config)
    shares = _shares_lanes(plan, needs)
    rule = Profile(
        max_batch_tokens=SHARED_BATCH_TOKENS if shares else MAX_BATCH_TOKENS,
        num_streams=1 if shares else config.num_threads,
        shares_lanes=shares,
        library="auto",
    )
    chosen = rule if found is None else found
    if found is not None and not _fits(plan, files, config, found):
        log = logging.getLogger(__name__)
        log.warning("the tuned profile is not used: its batches or lanes need more memory")
        chosen = rule
    budget = config.max_batch_tokens or chosen.max_batch_tokens
    return replace(chosen, max_batch_tokens=budget)


def _fits(plan: EnginePlan, files: ModelFiles, config: Config, profile: Profile) -> bool:
    """Return whether the memory that is left allows a profile."""
    budget = config.max_batch_tokens or profile.max_batch_tokens
    needs = _needs(replace(plan, needs=None), files, replace(config, max_batch_tokens=budget))
    if profile.shares_lanes:
        return _room(plan).too_small(needs.shared, needs.files) is None
    return not _shares_lanes(plan, needs)


def lower(spec: ModelSpec, weights: Mapping[str, Any], plan: EnginePlan, config: Config) -> Engine:
    """Compile the graph with weights in memory; caches no compiled graph on disk.

    Laid out in memory as the plan says; one that was not asked for is for a model of any size.
    """
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.engines.openvino.layerwise import LayerwiseEngine
    from embedlib.engines.openvino.layout import Layout
    from embedlib.engines.openvino.memory import MAX_BATCH_TOKENS, MemoryNeeds

    needs = plan.needs if isinstance(plan.needs, MemoryNeeds) else None
    budget = MAX_BATCH_TOKENS if plan.is_by_layer else None
    layout = Layout(
        threads=config.num_threads,
        max_batch_tokens=config.max_batch_tokens or budget,
        shares_lanes=plan.is_by_layer or (needs is not None and _shares_lanes(plan, needs)),
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
    can_per_token=True,
    can_splade=True,
    can_by_layer=True,
    lower=lower,
    open_weights=open_weights,
    searched_precisions=tuple(INT8_GROUPS),
    coarser_forms=COARSER_FORMS,
    computed_precisions=frozenset({"bf16", "float32"}),
)
