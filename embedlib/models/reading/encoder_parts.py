"""Reads those parts of an `Encoder` that only some families have, by the row of the family."""

from __future__ import annotations

import math

from embedlib.models.encoder_parts import (
    Convolutions,
    Experts,
    LinearBias,
    PositionBias,
    RelativePositions,
    WideHeads,
)
from embedlib.models.families.row import Alternation, Family, Key
from embedlib.models.reading.config_keys import LAYER_TYPES
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.traits import (
    optional_integer,
    optional_number,
    read_boolean,
    read_integer,
    read_number,
)


def attention_scale(config: JsonObject, family: Family, head_dim: int) -> float | None:
    """Return the factor on queries times keys; None: that of the head size alone."""
    if family.query_scalar is not None:
        scale: float = read_number(config, family.query_scalar) ** -0.5
        return scale
    if family.projections > 1:
        return 1 / math.sqrt(head_dim * family.projections)
    return None


def read_position_bias(config: JsonObject, family: Family) -> PositionBias | LinearBias | None:
    """Return the bias of attention scores; None if the family has none."""
    if family.has_alibi:
        return LinearBias()
    if family.bias_buckets is None or family.bias_distance is None:
        return None
    num_buckets = read_integer(config, family.bias_buckets)
    max_distance = read_integer(config, family.bias_distance)
    if isinstance(family.bias_buckets, Key) and num_buckets % 4:
        raise config.refuse(family.bias_buckets.name, "a multiple of 4")
    if isinstance(family.bias_distance, Key) and max_distance <= num_buckets // 4:
        raise config.refuse(family.bias_distance.name, f"more than {num_buckets // 4}")
    return PositionBias(
        num_buckets=num_buckets, max_distance=max_distance, is_alone=family.positions == "bias"
    )


def read_wide_heads(
    config: JsonObject, family: Family, windows: tuple[int | None, ...], num_heads: int
) -> WideHeads | None:
    """Return the heads of the layers without a window; None if they are as those of the others."""
    if family.wide_heads is None:
        return None
    key = family.wide_heads.name
    by_layer = config.child(key)
    # A key is a layer's number, in the published file with a zero in front: "05".
    names = {name.lstrip("0") or name[-1:]: name for name in by_layer.values}
    wide = {str(layer) for layer, window in enumerate(windows) if window is None}
    if windows[-1] is not None:
        # The class makes the last one full, whatever the file says.
        raise config.refuse("layer_types", "full_attention in the last layer")
    values = list(by_layer.values.values())
    if names.keys() != wide or len(values) > len(names) or any(x != values[0] for x in values):
        raise config.refuse(
            key, f"the same heads for each of the layers {', '.join(sorted(wide, key=int))} alone"
        )
    heads = by_layer.child(names[min(wide)])
    heads.check_keys({"head_dim", "num_key_value_heads"})
    head_dim, num_kv_heads = heads.integer("head_dim"), heads.integer("num_key_value_heads")
    if head_dim % 2 or num_heads % num_kv_heads:
        raise config.refuse(
            key, f"an even head_dim and a divisor of num_attention_heads = {num_heads}"
        )
    return WideHeads(head_dim=head_dim, num_kv_heads=num_kv_heads)


def read_experts(config: JsonObject, family: Family, num_layers: int) -> Experts | None:
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


def read_convolutions(config: JsonObject, family: Family, num_layers: int) -> Convolutions | None:
    """Return the convolutions; None if the family has none.

    Source: `Lfm2Config.__post_init__` in transformers 5.23, models/lfm2.
    """
    keys = family.convolutions
    if keys is None:
        return None
    width = read_integer(config, keys.width)
    if not width % 2:
        raise config.refuse(keys.width.name, "an odd number")
    kinds = config.values.get("layer_types")
    if kinds is None:
        places = config.values.get("full_attn_idxs")
        if not isinstance(places, list) or any(place not in range(num_layers) for place in places):
            raise config.refuse("full_attn_idxs", f"places of layers, from 0 to {num_layers - 1}")
        kinds = ["full_attention" if i in places else "conv" for i in range(num_layers)]
    if not _are_names(kinds, num_layers, ("conv", "full_attention")):
        raise config.refuse(
            "layer_types", f"a list of {num_layers} names, each conv or full_attention"
        )
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == "conv")
    return Convolutions(layers=layers, width=width, has_bias=read_boolean(config, keys.has_bias))


def read_inner_size(config: JsonObject, family: Family) -> int:
    """Return the width of the MLP.

    Source: `Lfm2MLP` in transformers 5.23, models/lfm2.
    """
    size, keys = config.integer("intermediate_size"), family.inner_size
    if keys is None or not read_boolean(config, keys.adjusts):
        return size
    factor = optional_number(config, keys.factor)
    size = int(2 * size / 3)
    if factor is None:
        return size
    multiple = read_integer(config, keys.multiple)
    return -(-int(factor * size) // multiple) * multiple


def read_relative(
    config: JsonObject, family: Family, num_positions: int
) -> RelativePositions | None:
    """Return the relative positions; None if the family has others."""
    if family.relative_buckets is None:
        return None
    num_buckets = config.integer(family.relative_buckets.name)
    if not 4 <= num_buckets < 2 * num_positions:
        raise config.refuse(family.relative_buckets.name, "4 to twice the number of positions")
    return RelativePositions(num_buckets=num_buckets, max_distance=num_positions)


def read_is_causal(config: JsonObject, family: Family) -> bool:
    """Return whether a token attends only to itself and the tokens before it."""
    if family.is_bidirectional is not None:
        return not read_boolean(config, family.is_bidirectional)
    return family.is_causal is not None and read_boolean(config, family.is_causal)


def read_windows(
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
    if not _are_names(kinds, num_layers, LAYER_TYPES[: 1 if window is None else 2]):
        raise config.refuse(
            "layer_types",
            f"a list of {num_layers} names, each full_attention, or sliding_attention if the model "
            "has a window",
        )
    return tuple(window if kind == LAYER_TYPES[1] else None for kind in kinds)


def _are_names(kinds: object, num_layers: int, accepted: tuple[str, ...]) -> bool:
    """Return whether `layer_types` has an accepted name for every layer."""
    return (
        isinstance(kinds, list)
        and len(kinds) == num_layers
        and all(kind in accepted for kind in kinds)
    )


def _alternating(config: JsonObject, alternation: Alternation, num_layers: int) -> list[str]:
    """Return the attention type of each layer, for a file that does not list them."""
    every = alternation.every
    if isinstance(every, Key):
        every = config.integer(every.name, every.default)
    full = 0 if alternation.full == "first" else every - 1
    return [LAYER_TYPES[layer % every != full] for layer in range(num_layers)]
