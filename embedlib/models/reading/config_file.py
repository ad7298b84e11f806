"""Reads the config.json of a transformer into an `Encoder`, by the row of its family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass

from embedlib.errors import ModelUnsupportedError
from embedlib.models.families.refused import ARCHITECTURES, MODEL_TYPES, NEAREST, OWN_CLASSES
from embedlib.models.families.row import UNLIMITED_POSITIONS, Family, Key
from embedlib.models.families.table import FAMILIES, NESTED, OWN_CONFIGS
from embedlib.models.reading.config_keys import (
    FIXED_KEYS,
    HARMLESS_KEYS,
    ROPE_KEYS,
    SHAPE_KEYS,
    WINDOW_KEYS,
)
from embedlib.models.reading.encoder_parts import (
    attention_scale,
    read_convolutions,
    read_experts,
    read_inner_size,
    read_is_causal,
    read_position_bias,
    read_relative,
    read_wide_heads,
    read_windows,
)
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.refusals import QUANTIZED
from embedlib.models.reading.rope_config import read_ropes
from embedlib.models.reading.traits import (
    optional_integer,
    optional_number,
    read_activation,
    read_boolean,
    read_number,
)
from embedlib.models.spec import Encoder


def architecture_of(config: JsonObject) -> str:
    """Return the transformers class that config.json names; "" if it names none.

    Raises:
        ModelUnsupportedError: if it is no list of names.
    """
    names = config.values.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise config.refuse("architectures", "a list with the name of a class")
    return names[0]


def family_of(config: JsonObject) -> Family:
    """Return the family that config.json names, by its `model_type` and the class in `auto_map`.

    Raises:
        ModelUnsupportedError: if the table has no row for its `model_type`.
    """
    config = flattened(config)
    _check_explained(config)
    family = _family_of_type(config)
    own_classes = config.child("auto_map").values
    for row in family.own_rows:
        chosen = [(config.values.get(key), values) for key, values in row.chosen_by.items()]
        is_chosen = any(found in values if values else found for found, values in chosen)
        is_named = any(row.implements(key, own_classes.get(key)) for key in row.own_code)
        if is_chosen or (is_named and not row.chosen_by):
            return row
    return family


def _family_of_type(config: JsonObject) -> Family:
    own_config = str(config.child("auto_map").values.get("AutoConfig")).rpartition(".")[2]
    return config.choice("model_type", FAMILIES, OWN_CONFIGS.get(own_config))


def flattened(config: JsonObject) -> JsonObject:
    """Return the part of config.json that describes the transformer for texts.

    Raises:
        ModelUnsupportedError: if the file has an unknown key beside it.
    """
    model_type = config.values.get("model_type")
    nested = NESTED.get(model_type) if isinstance(model_type, str) else None
    if nested is None:
        return config
    config.check_keys(HARMLESS_KEYS | FIXED_KEYS.keys() | {nested.key} | nested.harmless)
    for key, accepted in FIXED_KEYS.items():
        config.check_fixed(key, accepted)
    check_no_own_code(config)
    inner = config.child(nested.key)
    if inner.values.get("model_type") != nested.model_type:
        raise inner.refuse("model_type", nested.model_type)
    architectures = {key: config.values[key] for key in ("architectures",) if key in config.values}
    return JsonObject(inner.name, {**inner.values, **architectures})


def _check_explained(config: JsonObject) -> None:
    """Reject a model of which it is known what it is, and what comes nearest."""
    if "model_type" not in config and "pooling_mode_mean_tokens" in config:
        raise ModelUnsupportedError(
            f"{config.name}: is that of a Pooling, which took the place of the transformer's when "
            "the model's folders were copied into one; copy the model again with its folders"
        )
    first = config.values.get("architectures") or [None]
    architecture = first[0] if isinstance(first, list) else None
    for key, value, reasons in (
        ("architectures", architecture, ARCHITECTURES),
        ("model_type", config.values.get("model_type"), MODEL_TYPES),
    ):
        if isinstance(value, str) and value in reasons:
            raise ModelUnsupportedError(f"{config.name}: {key} = {quote(value)} {reasons[value]}")


def positions_key(config: JsonObject) -> str:
    """Return the key that holds the number of positions."""
    names = family_of(config).num_positions
    config = flattened(config)
    return next((name for name in names if name in config), next(iter(reversed(names)), ""))


def positions_source(config: JsonObject) -> str:
    """Return the key that limits the length of a text, for messages."""
    if family_of(config).ends_at_original_length:
        return "original_max_position_embeddings"
    return positions_key(config) or "no limit"


def read_encoder(config: JsonObject) -> Encoder:
    """Return the transformer that config.json describes.

    Raises:
        ModelUnsupportedError: if a key is unknown or missing, or its value is not implemented.
    """
    family = family_of(config)
    config = flattened(config)
    # Before the keys: custom code in the model folder may compute something other than the family's
    # class, and explains keys that are not known. Example: gte-Qwen2 attends in both directions.
    check_own_code(config, "AutoModel")
    _check_implied(config, family)
    config = config.renamed(family.names)
    _check_keys(config, family)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers")
    num_positions = UNLIMITED_POSITIONS
    if family.num_positions:
        num_positions = config.integer(positions_key(config))
    num_kv_heads = optional_integer(config, family.num_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise config.refuse(
            "num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}"
        )
    head_dim = optional_integer(config, family.head_dim)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.refuse("num_attention_heads", f"a divisor of hidden_size = {hidden_size}")
        head_dim = hidden_size // num_heads
    elif family.positions == "relative" and head_dim * num_heads != hidden_size:
        raise config.refuse("attention_head_size", "hidden_size / num_attention_heads")
    if family.rope_theta is not None and head_dim % 2:
        raise config.refuse("head_dim", "an even number")
    pad_token_id = None
    if family.positions == "learned_after_padding":
        pad_token_id = config.integer("pad_token_id", 1, minimum=0)
    rope, window_rope = read_ropes(config, family, num_positions, head_dim)
    if family.ends_at_original_length and rope is not None:
        num_positions = min(num_positions, rope.original_max_positions)
    embedding_size = optional_integer(config, family.embedding_size)
    activation = read_activation(config, family.activation)
    if family.gelu_is_tanh and activation == "gelu":
        activation = "gelu_tanh"
    is_causal = read_is_causal(config, family)
    windows = read_windows(config, family, num_layers, is_causal)
    return Encoder(
        family=family.key,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=read_inner_size(config, family),
        activation=activation,
        is_gated=family.is_gated,
        norm=family.norm,
        norm_eps=read_number(config, family.norm_eps),
        has_norm_bias=read_boolean(config, family.has_norm_bias),
        norm_placement=family.norm_placement,
        norms_embeddings=family.norms_embeddings,
        embedding_scale=math.sqrt(hidden_size) if family.scales_embeddings else 1.0,
        embedding_size=None if embedding_size == hidden_size else embedding_size,
        num_positions=num_positions,
        position_offset=0 if pad_token_id is None else pad_token_id + 1,
        pad_token_id=pad_token_id,
        num_token_types=optional_integer(config, family.num_token_types, minimum=0) or 0,
        num_task_types=optional_integer(config, family.num_task_types) or 0,
        rope=rope,
        window_rope=window_rope,
        position_bias=read_position_bias(config, family),
        relative_positions=read_relative(config, family, num_positions),
        is_causal=is_causal,
        windows=windows,
        attention_scale=attention_scale(config, family, head_dim),
        attention_cap=optional_number(config, family.attention_cap),
        has_qk_norm=family.has_qk_norm,
        qk_norm_joins_heads=family.qk_norm_joins_heads,
        norms_attention_twice=family.norms_attention_twice,
        has_v_norm=family.has_v_norm,
        wide_heads=read_wide_heads(config, family, windows, num_heads),
        layer_input_size=optional_integer(config, family.layer_input_size),
        has_qkv_bias=read_boolean(config, family.has_qkv_bias),
        has_output_bias=read_boolean(config, family.has_output_bias),
        has_mlp_bias=read_boolean(config, family.has_mlp_bias),
        has_down_bias=read_boolean(
            config, family.has_mlp_bias if family.has_down_bias is None else family.has_down_bias
        ),
        experts=read_experts(config, family, num_layers),
        convolutions=read_convolutions(config, family, num_layers),
    )


def _check_implied(config: JsonObject, family: Family) -> None:
    """Reject a file that leaves out a key whose default in the file's schema is not implemented."""
    for mark, keys in family.implied.items():
        for key in keys:
            if mark in config.values and key not in config.values:
                raise config.refuse(key, f"an explicit value, since the file has {mark}")


def _check_keys(config: JsonObject, family: Family) -> None:
    """Reject unknown keys, and fixed keys whose value is not one of those implemented."""
    fixed = {**FIXED_KEYS, **family.fixed}
    traits = set(_trait_names(family))
    if family.convolutions is not None:
        traits |= {"layer_types", "full_attn_idxs"}
    known = HARMLESS_KEYS | SHAPE_KEYS | fixed.keys() | family.harmless | traits
    known |= family.chosen_by.keys()
    known |= set(family.num_positions)
    if family.rope_theta is not None:
        known |= ROPE_KEYS
    known |= WINDOW_KEYS[family.windows]
    config.check_keys(known)
    if "quantization_config" in config:
        raise config.refuse("quantization_config", QUANTIZED)
    for key, accepted in fixed.items():
        if key not in traits:
            config.check_fixed(key, accepted)


def _trait_names(row: object) -> Iterator[str]:
    """Yield the keys that a row reads traits from, those of its parts included."""
    for trait in vars(row).values():
        if isinstance(trait, Key):
            yield trait.name
        elif is_dataclass(trait):
            yield from _trait_names(trait)


def check_no_own_code(config: JsonObject) -> None:
    """Reject a custom model class."""
    if "AutoModel" in config.child("auto_map").values:
        raise config.refuse(
            "auto_map", "a model without custom code, which embedlib never runs (no AutoModel)"
        )


def check_own_code(config: JsonObject, key: str) -> None:
    """Reject a custom model class, unless the family's row implements that class.

    Args:
        config: config.json.
        key: the key of `auto_map`: the transformers class that the custom class replaces.
    """
    own_code = config.child("auto_map").values.get(key)
    if own_code is None or family_of(config).implements(key, own_code):
        return
    family = _family_of_type(config)
    rows = (family, *family.own_rows)
    known = dict.fromkeys(name for row in rows for name in row.own_code.get(key, ()))
    accepted = "".join(f", or {name}" for name in known)
    known_of = NEAREST if key == "AutoModel" else ""
    name = str(own_code)
    told = OWN_CLASSES.get(name) or OWN_CLASSES.get(name.rpartition(".")[2], known_of)
    raise config.refuse(
        "auto_map",
        f"a model without custom code, which embedlib never runs (no {key} in auto_map"
        f"{accepted}){'; ' if told else ''}{told}",
    )
