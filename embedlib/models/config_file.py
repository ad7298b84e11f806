"""config.json of a transformer to an `Encoder`, by the row of its family."""

from __future__ import annotations

from typing import Final

from embedlib.models.families import (
    ACTIVATIONS_BY_NAME,
    FAMILIES,
    FIXED_KEYS,
    HARMLESS_KEYS,
    ROPE_KEYS,
    SHAPE_KEYS,
    WINDOW_KEYS,
    Family,
    Key,
)
from embedlib.models.json_files import JsonObject
from embedlib.models.spec import ROPE_KINDS, Encoder, Rope, RopeKind

ROPE_KIND_KEYS: Final[dict[str, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
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
"""What each kind reads. Source: transformers 5.5, modeling_rope_utils.py."""


def family_of(config: JsonObject) -> Family:
    """Return the family that config.json names.

    Raises:
        ModelUnsupportedError: there is no row for it.
    """
    return config.choice("model_type", FAMILIES)


def read_encoder(config: JsonObject) -> Encoder:
    """Return the transformer that config.json describes.

    Raises:
        ModelUnsupportedError: a key is unknown, missing, or holds what is not implemented.
    """
    family = family_of(config)
    _check_keys(config, family)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers")
    num_positions = config.integer("max_position_embeddings")
    num_kv_heads = _optional_integer(config, family.num_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise config.refuse(
            "num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}"
        )
    head_dim = _optional_integer(config, family.head_dim)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.refuse("num_attention_heads", f"a divisor of hidden_size = {hidden_size}")
        head_dim = hidden_size // num_heads
    is_rotary = family.positions == "rotary"
    if is_rotary and head_dim % 2:
        raise config.refuse("head_dim", "an even number")
    pad_token_id = None
    if family.positions == "learned_after_padding":
        pad_token_id = config.integer("pad_token_id", 1, minimum=0)
    return Encoder(
        family=family.model_type,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        activation=config.choice(
            family.activation.name, ACTIVATIONS_BY_NAME, family.activation.default
        ),
        is_gated=family.is_gated,
        norm=family.norm,
        norm_eps=config.number(family.norm_eps.name, family.norm_eps.default),
        norm_placement=family.norm_placement,
        num_positions=num_positions,
        position_offset=0 if pad_token_id is None else pad_token_id + 1,
        pad_token_id=pad_token_id,
        num_token_types=_optional_integer(config, family.num_token_types) or 0,
        rope=_read_rope(config, num_positions) if is_rotary else None,
        is_causal=family.is_causal is not None and _boolean(config, family.is_causal),
        windows=_read_windows(config, family, num_layers),
        has_qk_norm=family.has_qk_norm,
        has_qkv_bias=_boolean(config, family.has_qkv_bias),
        has_output_bias=_boolean(config, family.has_output_bias),
        has_mlp_bias=_boolean(config, family.has_mlp_bias),
    )


def _check_keys(config: JsonObject, family: Family) -> None:
    """Refuse keys that are unknown, and fixed keys with another value than the fixed one."""
    traits = (
        family.norm_eps, family.activation, family.num_token_types, family.num_kv_heads,
        family.head_dim, family.is_causal, family.has_qkv_bias, family.has_output_bias,
        family.has_mlp_bias,
    )  # fmt: skip
    known = HARMLESS_KEYS | SHAPE_KEYS | FIXED_KEYS.keys() | family.fixed.keys()
    known |= {trait.name for trait in traits if isinstance(trait, Key)}
    if family.positions == "rotary":
        known |= ROPE_KEYS
    known |= WINDOW_KEYS[family.windows]
    config.check_keys(known)
    for key, accepted in {**FIXED_KEYS, **family.fixed}.items():
        config.check_fixed(key, accepted)
    # Code that travels with the model computes something else than the family's class: gte-Qwen2,
    # for one, attends in both directions.
    own_code = config.child("auto_map").values.get("AutoModel")
    if own_code is not None:
        raise config.refuse(
            "auto_map", "a model without code of its own (no AutoModel in auto_map)"
        )


def _read_windows(config: JsonObject, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Return the attention window of each layer, None where the layer sees everything."""
    if family.windows == "none":
        return (None,) * num_layers
    # Where the key is missing transformers takes 4096; null switches windows off.
    window = config.optional_integer("sliding_window", 4096, minimum=1)
    if family.windows == "all_layers":
        return (window,) * num_layers
    if not config.boolean("use_sliding_window", False):
        window = None
    kinds = config.values.get("layer_types")
    if kinds is None:
        first = config.integer("max_window_layers", 28, minimum=0)
        return tuple(None if layer < first else window for layer in range(num_layers))
    accepted = {"full_attention": None, "sliding_attention": window}
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in accepted for kind in kinds)
        or (window is None and "sliding_attention" in kinds)
    ):
        raise config.refuse(
            "layer_types",
            f"{num_layers} times full_attention, or sliding_attention where use_sliding_window "
            "and sliding_window are set",
        )
    return tuple(accepted[kind] for kind in kinds)


def _read_rope(config: JsonObject, num_positions: int) -> Rope:
    """Return the rotary embedding, from the keys of transformers 4 or of transformers 5.

    transformers 4 wrote `rope_theta` and `rope_scaling`; 5 writes both into `rope_parameters`.
    """
    if "rope_scaling" in config and "rope_parameters" in config:
        raise config.refuse("rope_scaling", "either rope_scaling or rope_parameters")
    key = "rope_scaling" if "rope_scaling" in config else "rope_parameters"
    scaling = config.child(key)
    accepted: dict[str, RopeKind] = {kind: kind for kind in ROPE_KINDS}
    kind = scaling.choice("rope_type" if "rope_type" in scaling else "type", accepted, "default")
    scaling.check_keys(
        ROPE_KIND_KEYS[kind] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    )
    scaling.check_fixed("partial_rotary_factor", (1.0, None))
    theta = scaling.number("rope_theta", config.number("rope_theta", 10_000.0))
    if kind == "default":
        return Rope(theta=theta)
    if kind in ("linear", "dynamic"):
        return Rope(
            kind=kind,
            theta=theta,
            factor=scaling.number("factor"),
            original_max_positions=num_positions,
        )
    # A top-level key wins over the nested one, as in transformers.
    outer = config if "original_max_position_embeddings" in config else scaling
    original = outer.integer("original_max_position_embeddings", num_positions)
    if kind == "llama3":
        return Rope(
            kind=kind,
            theta=theta,
            factor=scaling.number("factor"),
            original_max_positions=original,
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
        )
    return Rope(
        kind=kind,
        theta=theta,
        factor=scaling.number("factor", num_positions / original),
        original_max_positions=original,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=scaling.optional_number("attention_factor"),
        mscale=scaling.optional_number("mscale"),
        mscale_all_dim=scaling.optional_number("mscale_all_dim"),
        truncate=scaling.boolean("truncate", True),
    )


def _optional_integer(config: JsonObject, trait: Key | None) -> int | None:
    """Return a trait that is an integer or null."""
    if trait is None:
        return None
    return config.optional_integer(trait.name, trait.default, minimum=1)


def _boolean(config: JsonObject, trait: bool | Key) -> bool:
    """Return a trait that is a boolean."""
    if isinstance(trait, bool):
        return trait
    return config.boolean(trait.name, trait.default)
