"""How a model is to run on the CPU: what memory it needs, how lanes share it, which profile.

Imports no openvino.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from embedlib.engines.profile import Profile, ProfileKey
from embedlib.system.memory import gib
from embedlib.version import __version__

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.engines.openvino.plans.memory import MemoryNeeds
    from embedlib.models.reading.files import ModelFiles


def needs_of(plan: EnginePlan, files: ModelFiles, config: Config) -> MemoryNeeds:
    """Return what a device needs; nothing is widened where there is memory only without that."""
    from embedlib.engines.openvino.kept.float32_copy import pays
    from embedlib.engines.openvino.plans.memory import MemoryNeeds, layerwise_needs, memory_needs

    if plan.is_by_layer:
        return layerwise_needs(files, config)
    if isinstance(plan.needs, MemoryNeeds) and plan.needs.precision == str(plan.precision):
        return plan.needs
    config = replace(config, threads=plan.threads_each(config))
    needs = memory_needs(files, plan.precision, config, is_widened=pays(plan.precision))
    if needs.is_widened and plan.memory.too_small(needs.shared, needs.files) is not None:
        return memory_needs(files, plan.precision, config)
    return needs


def shares_lanes(plan: EnginePlan, needs: MemoryNeeds) -> bool:
    """Return whether a compiled model of each lane would take too much memory."""
    is_too_large = plan.memory.too_small(needs.separate, needs.files) is not None
    return is_too_large or not needs.may_be_separate


def describe_memory(plan: EnginePlan, files: ModelFiles, config: Config) -> str:
    """Return one line: what a precision needs, and whether the process can have it."""
    needs = needs_of(plan, files, config)
    shortage = plan.memory.shortage(needs.shared, needs.files)
    shares = shares_lanes(plan, needs)
    told = gib(needs.shared if shares else needs.separate)
    if shortage is not None:
        told, limit, _ = shortage
        verdict = f"no, this process can have {limit}"
    elif shares:
        verdict = "yes, both lanes share a compiled model"
    else:
        verdict = f"yes, with a compiled model for each lane; {gib(needs.shared)} with one for both"
    is_written = needs.is_widened and needs.is_large and config.prepare
    copied = "; 16-bit weights are copied to the cache as float32" if is_written else ""
    return f"needs about {told} for {gib(needs.weights)} of weights: {verdict}{copied}"


def profile_key(
    plan: EnginePlan, files: ModelFiles, config: Config, machine: Machine
) -> ProfileKey:
    """Return what a profile is valid for: models of the same layers, on CPUs of this kind."""
    from embedlib.engines.openvino.plans.memory import stores_16_bits

    encoder = files.spec.encoder
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
    more = ("intermediate_size", "is_gated", "is_causal")
    parts = ("windows", "wide_heads", "experts", "convolutions", "layer_input_size")
    scores = ("position_bias", "relative_positions", "attention_cap")
    facts = asdict(encoder)
    shape = {name: facts[name] for name in (*names, *more, *parts, *scores)}
    is_narrow = stores_16_bits(files, plan.precision.folder)
    is_narrow = is_narrow and not needs_of(plan, files, config).is_widened
    return ProfileKey(
        engine=plan.engine,
        precision=plan.precision.name,
        # Without the length limit: with another one the same layers are computed, and `_fits` sees
        # to the memory of a higher one.
        shape={**shape, "stores_16_bits": is_narrow, "excluded": sorted(plan.precision.excluded)},
        machine={"cpu": list(machine.cpu_identity()), "threads": plan.threads_each(config)},
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
    from embedlib.engines.openvino.plans.memory import best_batch_tokens
    from embedlib.engines.openvino.sizes.number_types import number_type

    needs = needs_of(plan, files, config)
    shares = shares_lanes(plan, needs)
    rule = Profile(
        max_batch_tokens=best_batch_tokens(number_type(plan.precision.name), shares_lanes=shares),
        num_streams=1 if shares else plan.threads_each(config),
        shares_lanes=shares,
        library="auto",
    )
    chosen = rule if found is None else found
    if found is not None and not _fits(plan, files, config, found):
        chosen = rule
    budget = config.max_batch_tokens or chosen.max_batch_tokens
    if files.spec.encoder.relative_positions is not None:
        from embedlib.engines.openvino.graphs.distances import most_batch_tokens

        budget = min(budget, most_batch_tokens(files.spec.encoder))
    return replace(chosen, max_batch_tokens=budget)


def _fits(plan: EnginePlan, files: ModelFiles, config: Config, profile: Profile) -> bool:
    """Return whether the memory that is left allows a profile."""
    budget = config.max_batch_tokens or profile.max_batch_tokens
    needs = needs_of(replace(plan, needs=None), files, replace(config, max_batch_tokens=budget))
    if profile.shares_lanes:
        return plan.memory.too_small(needs.shared, needs.files) is None
    return not shares_lanes(plan, needs)
