"""Reads the rotary embeddings from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.models.encoder_parts import Rope
from embedlib.models.families.row import Family, Key, RopeScaling
from embedlib.models.reading.config_keys import LAYER_TYPES
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.traits import read_boolean, read_number

ROPE_KIND_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "ntk": frozenset({"factor", "mixed_b"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset(
        {
            "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
            "beta_slow", "mscale", "mscale_all_dim", "truncate",
        }
    ),
    "llama3": frozenset(
        {
            "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
        }
    ),
}  # fmt: skip
"""Keys that each kind reads. Source: transformers 5.5, modeling_rope_utils.py; ntk: see `_ntk`."""

LATE_KEYS: Final = frozenset({"llama_4_scaling_beta", "max_position_embeddings"})
"""Keys that have no effect up to the original length; see `Family.ends_at_original_length`."""


def read_ropes(
    config: JsonObject, family: Family, num_positions: int, head_dim: int
) -> tuple[Rope | None, Rope | None]:
    """Return the rotary embedding, and that of layers with a window; None if it is the same.

    transformers 4 wrote `rope_theta` and `rope_scaling`. 5 writes both into `rope_parameters`, with
    one object per attention type if they differ.
    """
    if family.rope_theta is None:
        return None, None
    if "rope_scaling" in config and "rope_parameters" in config:
        raise config.refuse("rope_scaling", "either rope_scaling or rope_parameters")
    kinds: Mapping[str, RopeScaling] = {kind: kind for kind in family.rope_kinds}
    theta = read_number(config, family.rope_theta)
    if family.window_rope_theta is None:
        scaling = config.child("rope_scaling" if "rope_scaling" in config else "rope_parameters")
        # A top-level key wins over the nested one, as in transformers.
        outer = config if "original_max_position_embeddings" in config else scaling
        if family.ends_at_original_length:
            kept = {key: value for key, value in scaling.values.items() if key not in LATE_KEYS}
            scaling = JsonObject(scaling.name, kept)
        rope = _read_rope(scaling, outer, kinds, theta, num_positions, head_dim)
        # The nested theta wins over the top-level one, but must agree with a key of another schema.
        key = family.rope_theta.name
        if config.aliases.get(key, key) != key and key in config and rope.theta != theta:
            raise config.refuse(key, f"{rope.theta:g}, the value of {scaling.name.split()[-1]}")
        return rope, None
    config.check_fixed("original_max_position_embeddings", (None,))
    window_theta = read_number(config, family.window_rope_theta)
    parameters = config.child("rope_parameters")
    # If all layers are of one kind, transformers 5.5 takes the object for that of one rope and adds
    # these keys to it, which no layer reads: `standardize_rope_params` of modeling_rope_utils.py.
    parameters.check_keys({*LAYER_TYPES, "rope_type", "rope_theta"})
    parameters.check_fixed("rope_type", ("default", None))
    parameters.check_fixed("rope_theta", (None,))
    full, window = (parameters.child(kind) for kind in LAYER_TYPES)
    if "rope_scaling" in config:
        full = config.child("rope_scaling")
        if "rope_type" not in full:  # transformers 5 takes the default then, 4 that of the old key
            full.check_fixed("type", ("default", None))
    return (
        _read_rope(full, full, kinds, theta, num_positions, head_dim),
        _read_rope(window, window, kinds, window_theta, num_positions, head_dim),
    )


def _read_rope(
    scaling: JsonObject,
    outer: JsonObject,
    kinds: Mapping[str, RopeScaling],
    theta: float,
    num_positions: int,
    head_dim: int,
) -> Rope:
    """Return one rotary embedding.

    Args:
        scaling: the object that describes it; may be empty.
        outer: the object that holds the original length.
        kinds: the implemented kinds.
        theta: the theta if `scaling` does not contain one.
        num_positions: the trained length.
        head_dim: dimensions of one head.
    """
    kind = scaling.choice("rope_type" if "rope_type" in scaling else "type", kinds, "default")
    scaling.check_keys(
        ROPE_KIND_KEYS[kind] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    )
    scaling.check_fixed("partial_rotary_factor", (1.0, None))
    theta = scaling.number("rope_theta", theta)
    if kind == "default":
        return Rope(theta=theta)
    if kind == "ntk":
        return _ntk(scaling, theta, num_positions, head_dim)
    if kind in ("linear", "dynamic"):
        factor = scaling.number("factor")
        return Rope(kind=kind, theta=theta, factor=factor, original_max_positions=num_positions)
    original = outer.integer("original_max_position_embeddings", num_positions)
    rope = Rope(kind=kind, theta=theta, original_max_positions=original)
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if high <= low:  # their difference is a divisor
            raise scaling.refuse("high_freq_factor", f"more than low_freq_factor = {low:g}")
        factor = scaling.number("factor")
        return replace(rope, factor=factor, low_freq_factor=low, high_freq_factor=high)
    return replace(
        rope,
        factor=scaling.number("factor", num_positions / original),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=scaling.optional_number("attention_factor"),
        mscale=scaling.optional_number("mscale"),
        mscale_all_dim=scaling.optional_number("mscale_all_dim"),
        truncate=read_boolean(scaling, Key("truncate", True)),
    )


def _ntk(scaling: JsonObject, theta: float, num_positions: int, head_dim: int) -> Rope:
    """Return the rotary embedding of kind ntk.

    With the factor f and the head size d, a pair of dimensions i turns by
    (f theta) ** (-2 i / d) / f ** (2 / d). That is linear scaling by f ** (2 / d) with the theta
    f theta.

    Source: `NTKScalingRotaryEmbedding` in modeling.py of huggingface.co/Alibaba-NLP/new-impl, which
    uses these frequencies for texts of all lengths if the factor is above 1. The equations are (6)
    of https://kexue.fm/archives/9706. With `mixed_b` it uses others.
    """
    scaling.check_fixed("mixed_b", (None,))
    factor = scaling.number("factor")
    if factor < 1:
        raise scaling.refuse("factor", "a number of at least 1")
    return Rope(
        kind="linear",
        theta=factor * theta,
        factor=factor ** (2 / head_dim),
        original_max_positions=num_positions,
    )
