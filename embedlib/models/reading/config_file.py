"""Reads the config.json of a transformer into an `Encoder`, by the row of its family."""

from __future__ import annotations

import math

from embedlib.errors import ModelUnsupportedError
from embedlib.models.families.row import UNLIMITED_POSITIONS, Alternation, Family, Key
from embedlib.models.families.table import FAMILIES, NESTED
from embedlib.models.reading.config_keys import (
    FIXED_KEYS,
    HARMLESS_KEYS,
    LAYER_TYPES,
    ROPE_KEYS,
    SHAPE_KEYS,
    WINDOW_KEYS,
)
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.refusals import (
    ARCHITECTURES,
    MODEL_TYPES,
    NEAREST,
    OWN_CLASSES,
    QUANTIZED,
)
from embedlib.models.reading.rope_config import read_ropes
from embedlib.models.reading.traits import (
    optional_integer,
    optional_number,
    read_activation,
    read_boolean,
    read_integer,
    read_number,
)
from embedlib.models.spec import (
    Encoder,
    Experts,
    LinearBias,
    PositionBias,
    RelativePositions,
    WideHeads,
)


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
    family = config.choice("model_type", FAMILIES)
    own_class = config.child("auto_map").values.get("AutoModel")
    for row in family.own_rows:
        if row.chosen_by:
            is_chosen = any(
                _chooses(config.values.get(key), row.chosen_by[key]) for key in row.chosen_by
            )
        else:
            is_chosen = row.implements("AutoModel", own_class)
        if is_chosen:
            return row
    return family


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


def _chooses(found: object, values: tuple[object, ...]) -> bool:
    """Return whether the value of a key chooses a row; see `Family.chosen_by`."""
    return found in values if values else bool(found)


def _check_explained(config: JsonObject) -> None:
    """Reject a model of which it is known what it is, and what comes nearest."""
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
    if family.rope_theta is not None and head_dim % 2:
        raise config.refuse("head_dim", "an even number")
    pad_token_id = None
    if family.positions == "learned_after_padding":
        pad_token_id = config.integer("pad_token_id", 1, minimum=0)
    rope, window_rope = read_ropes(config, family, num_positions, head_dim)
    if family.ends_at_original_length and rope is not None:
        num_positions = min(num_positions, rope.original_max_positions)
    activation = read_activation(config, family.activation)
    if family.gelu_is_tanh and activation == "gelu":
        activation = "gelu_tanh"
    is_causal = _is_causal(config, family)
    windows = _read_windows(config, family, num_layers, is_causal)
    return Encoder(
        family=family.key,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        activation=activation,
        is_gated=family.is_gated,
        norm=family.norm,
        norm_eps=read_number(config, family.norm_eps),
        has_norm_bias=read_boolean(config, family.has_norm_bias),
        norm_placement=family.norm_placement,
        norms_embeddings=family.norms_embeddings,
        embedding_scale=math.sqrt(hidden_size) if family.scales_embeddings else 1.0,
        num_positions=num_positions,
        position_offset=0 if pad_token_id is None else pad_token_id + 1,
        pad_token_id=pad_token_id,
        num_token_types=optional_integer(config, family.num_token_types, minimum=0) or 0,
        rope=rope,
        window_rope=window_rope,
        position_bias=_read_position_bias(config, family),
        relative_positions=_read_relative(config, family, num_positions),
        is_causal=is_causal,
        windows=windows,
        attention_scale=_attention_scale(config, family, head_dim),
        attention_cap=optional_number(config, family.attention_cap),
        has_qk_norm=family.has_qk_norm,
        has_v_norm=family.has_v_norm,
        wide_heads=_read_wide_heads(config, family, windows, num_heads),
        layer_input_size=optional_integer(config, family.layer_input_size),
        has_qkv_bias=read_boolean(config, family.has_qkv_bias),
        has_output_bias=read_boolean(config, family.has_output_bias),
        has_mlp_bias=read_boolean(config, family.has_mlp_bias),
        has_down_bias=read_boolean(
            config, family.has_mlp_bias if family.has_down_bias is None else family.has_down_bias
        ),
        experts=_read_experts(config, family, num_layers),
    )


def _attention_scale(config: JsonObject, family: Family, head_dim: int) -> float | None:
    """Return the factor on queries times keys; None: that of the head size alone."""
    if family.query_scalar is not None:
        scale: float = read_number(config, family.query_scalar) ** -0.5
        return scale
    if family.projections > 1:
        return 1 / math.sqrt(head_dim * family.projections)
    return None


def _read_position_bias(config: JsonObject, family: Family) -> PositionBias | LinearBias | None:
    """Return the bias of attention scores; None if the family has none."""
    if family.has_alibi:
        return LinearBias()
    if family.bias_buckets is None or family.bias_distance is None:
        return None
    num_buckets = read_integer(config, family.bias_buckets)
    max_distance = read_integer(config, family.bias_distance)
    if isinstance(family.bias_buckets, Key) and (num_buckets < 4 or num_buckets % 4):
        raise config.refuse(family.bias_buckets.name, "a multiple of 4")
    if isinstance(family.bias_distance, Key) and max_distance <= num_buckets // 4:
        raise config.refuse(family.bias_distance.name, f"more than {num_buckets // 4}")
    return PositionBias(
        num_buckets=num_buckets, max_distance=max_distance, is_alone=family.positions == "bias"
    )


def _read_wide_heads(
    config: JsonObject, family: Family, windows: tuple[int | None, ...], num_heads: int
) -> WideHeads | None:
    """Return the heads of the layers without a window; None if they are as those of the others."""
    if family.wide_heads is None:
        return None
    key = family.wide_heads.name
    by_layer = config.child(key)
    wide = {str(layer) for layer, window in enumerate(windows) if window is None}
    if windows[-1] is not None:
        # The class makes the last one full, whatever the file says.
        raise config.refuse("layer_types", "full_attention in the last layer")
    if by_layer.values.keys() != wide or any(
        value != by_layer.values[min(wide)] for value in by_layer.values.values()
    ):
        raise config.refuse(
            key, f"the same heads for each of the layers {', '.join(sorted(wide, key=int))} alone"
        )
    heads = by_layer.child(min(wide))
    heads.check_keys({"head_dim", "num_key_value_heads"})
    head_dim, num_kv_heads = heads.integer("head_dim"), heads.integer("num_key_value_heads")
    if head_dim % 2 or num_heads % num_kv_heads:
        raise config.refuse(
            key, f"an even head_dim and a divisor of num_attention_heads = {num_heads}"
        )
    return WideHeads(head_dim=head_dim, num_kv_heads=num_kv_heads)


def _read_experts(config: JsonObject, family: Family, num_layers: int) -> Experts | None:
    """Return the mixture of experts; None if the family has none."""
    keys = family.experts
    if keys is None:
        return None
    count, every = config.integer(keys.count.name), config.integer(keys.every.name, minimum=2)
    num_chosen = config.integer(keys.chosen.name)
    if num_chosen > count:
        raise config.refuse(keys.chosen.name, f"at most {keys.count.name} = {count}")
    layers = tuple(layer for layer in range(num_layers) if layer % every == 1)
    return Experts(count=count, num_chosen=num_chosen, layers=layers)


def _read_relative(
    config: JsonObject, family: Family, num_positions: int
) -> RelativePositions | None:
    """Return the relative positions; None if the family has others."""
    if family.relative_buckets is None:
        return None
    num_buckets = config.integer(family.relative_buckets.name)
    if not 4 <= num_buckets < 2 * num_positions:
        raise config.refuse(family.relative_buckets.name, "4 to twice the number of positions")
    return RelativePositions(num_buckets=num_buckets, max_distance=num_positions)


def _check_implied(config: JsonObject, family: Family) -> None:
    """Reject a file that leaves out a key whose default in the file's schema is not implemented."""
    for mark, keys in family.implied.items():
        for key in keys:
            if mark in config.values and key not in config.values:
                raise config.refuse(key, f"an explicit value, since the file has {mark}")


def _check_keys(config: JsonObject, family: Family) -> None:
    """Reject unknown keys, and fixed keys whose value is not one of those implemented."""
    fixed = {**FIXED_KEYS, **family.fixed}
    traits = {trait.name for trait in vars(family).values() if isinstance(trait, Key)}
    if family.projection is not None:
        traits.add(family.projection.features.name)
    if family.experts is not None:
        traits |= {trait.name for trait in vars(family.experts).values()}
    if family.alternation is not None and isinstance(family.alternation.every, Key):
        traits.add(family.alternation.every.name)
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
    # Custom code in the model folder may compute something other than the family's class. Example:
    # gte-Qwen2 attends in both directions.
    check_own_code(config, "AutoModel")


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
    family = config.choice("model_type", FAMILIES)
    rows = (family, *family.own_rows)
    known = dict.fromkeys(name for row in rows for name in row.own_code.get(key, ()))
    accepted = "".join(f", or {name}" for name in known)
    known_of = NEAREST if key == "AutoModel" else ""
    told = OWN_CLASSES.get(str(own_code).rpartition(".")[2], known_of)
    raise config.refuse(
        "auto_map",
        f"a model without custom code, which embedlib never runs (no {key} in auto_map"
        f"{accepted}){'; ' if told else ''}{told}",
    )


def _is_causal(config: JsonObject, family: Family) -> bool:
    """Return whether a token attends only to itself and the tokens before it."""
    if family.is_bidirectional is not None:
        return not read_boolean(config, family.is_bidirectional)
    return family.is_causal is not None and read_boolean(config, family.is_causal)


def _read_windows(
    config: JsonObject, family: Family, num_layers: int, is_causal: bool
) -> tuple[int | None, ...]:
    """Return the attention window of each layer; None for a layer without a window."""
    window: int | None
    if family.window is None:
        return (None,) * num_layers
    if family.alternation is not None:
        window = config.integer(family.window.name, family.window.default)
        kinds = _alternating(config, family.alternation, num_layers)
        if family.alternation.halves and not is_causal:
            window //= 2
    else:
        # null turns windows off.
        window = optional_integer(config, family.window)
        if family.windows == "all_layers":
            return (window,) * num_layers
        if not config.boolean("use_sliding_window", False):
            window = None
        first = config.integer("max_window_layers", 28, minimum=0)
        kinds = [LAYER_TYPES[window is not None and layer >= first] for layer in range(num_layers)]
    if config.values.get("layer_types") is not None:
        kinds = config.values["layer_types"]
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in LAYER_TYPES for kind in kinds)
        or (window is None and LAYER_TYPES[1] in kinds)
    ):
        raise config.refuse(
            "layer_types",
            f"a list of {num_layers} names, each full_attention, or sliding_attention if the model "
            "has a window",
        )
    return tuple(window if kind == LAYER_TYPES[1] else None for kind in kinds)


def _alternating(config: JsonObject, alternation: Alternation, num_layers: int) -> list[str]:
    """Return the attention type of each layer, for a file that does not list them."""
    every = alternation.every
    if isinstance(every, Key):
        every = config.integer(every.name, every.default)
    full = 0 if alternation.full == "first" else every - 1
    return [LAYER_TYPES[layer % every != full] for layer in range(num_layers)]
