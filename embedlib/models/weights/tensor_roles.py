"""The weights of a model: their roles, their shapes, and their names in a family's files.

Roles and shapes, with H hidden, I intermediate, Q = heads x head_dim, K = key/value heads x
head_dim:

- `tokens` [V, E], `positions` [P, E], `token_types` and `task_types` [types, E],
  `embedding_norm.weight/.bias` [E], where E is H unless there is an `embedding_projection.weight`
  [H, E] and `.bias` [H]
- `position_bias` [buckets, heads], `relative` [2 buckets, H], `relative_norm.weight/.bias` [H]
- per layer i: `layers.{i}.q` [Q, H], `.k` and `.v` [K, H], `.o` [H, Q], `.gate` and `.up` [I, H],
  `.down` [H, I], each with `.weight` and, if the spec has it, `.bias` [rows]; `.attention_norm` and
  `.mlp_norm` [H], and with sandwich norms `.attention_out_norm` and `.mlp_out_norm` [H];
  `.q_norm.weight` and `.k_norm.weight` [head_dim], or with `qk_norm_joins_heads`
  `.q_norm.weight/.bias` and `.k_norm.weight/.bias` [H]; with `norms_attention_twice`
  `.attention_out_norm` [H], the first of the two norms
- in a layer with E experts, in place of `.gate`, `.up` and `.down`: `.router.weight` [E, H],
  `.experts_up.weight` [E I, H], `.experts_down.weight` [E I, H], which is not transposed, and
  `.experts_down.bias` [H]; experts lie one behind the other
- in a layer with a convolution over W tokens, in place of `.q`, `.k`, `.v` and `.o`:
  `.conv_in` [3 H, H], `.conv` [H, 1, W] and `.conv_out` [H, H], each with `.weight` and, if it has
  one, `.bias` [rows]
- with inputs of width P to each of N layers: `layer_inputs.weight` [N P, H] and
  `layer_inputs_norm.weight` [P]; per layer `.input_gate.weight` [P, H],
  `.input_projection.weight` [H, P], `.input_norm.weight` [H] and `.scalar` [1]
- `final_norm.weight` [H]
- per module j of the spec: `modules.{j}.weight` and `.bias`; those of a head are in the
  transformer's files
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from embedlib.models.encoder_parts import Convolutions, Experts, PositionBias
from embedlib.models.families.row import Family, FusedSlice
from embedlib.models.spec import Dense, Encoder, LayerNorm

Shapes = dict[str, tuple[int, ...]]
ArraysByRole = Mapping[str, NDArray[Any]]
"""The weights of a model by role: its own in float32, or those of an engine directory."""

RESIDUAL: Final = "residual.weight"
"""The leaf of a module that is a layer of its own, of this name in the module's file."""

FUSED_LAYERS: Final = (("q", "k", "v"), ("gate", "up"))
"""Linear layers with the same input, which engines compute as one matrix, in one precision.

Source: `apply_quant_config_exclude_modules` in TensorRT-LLM, _torch/models/modeling_utils.py.
"""


ATTENTION_LAYERS: Final = ("q", "k", "v", "o", "q_norm", "k_norm")
MLP_LAYERS: Final = ("gate", "up", "down")
EXPERT_LAYERS: Final = ("router", "experts_up", "experts_down")
"""The matrices of experts; engines do not keep them in a lower precision."""


def encoder_shapes(encoder: Encoder) -> Shapes:
    """Return the shape of every role of a transformer."""
    hidden = encoder.hidden_size
    width = encoder.table_width
    shapes: Shapes = {"tokens": (encoder.vocab_size, width)}
    if encoder.is_table:
        return shapes
    relative = encoder.relative_positions
    if relative is not None:
        shapes["relative"] = (2 * relative.num_buckets, hidden)
        shapes |= _norm_shapes("relative_norm", encoder)
    elif encoder.has_position_table:
        shapes["positions"] = (encoder.num_positions, width)
    if encoder.num_token_types:
        shapes["token_types"] = (encoder.num_token_types, width)
    if encoder.num_task_types:
        shapes["task_types"] = (encoder.num_task_types, width)
    if isinstance(encoder.position_bias, PositionBias):
        shapes["position_bias"] = (encoder.position_bias.num_buckets, encoder.num_heads)
    if encoder.norm_placement == "post" or encoder.norms_embeddings:
        shapes |= _norm_shapes("embedding_norm", replace(encoder, hidden_size=width))
    if encoder.embedding_size is not None:
        shapes["embedding_projection.weight"] = (hidden, width)
        shapes["embedding_projection.bias"] = (hidden,)
    if encoder.norm_placement != "post":
        shapes |= _norm_shapes("final_norm", encoder)
    if encoder.layer_input_size is not None:
        shapes["layer_inputs.weight"] = (encoder.num_layers * encoder.layer_input_size, hidden)
        shapes["layer_inputs_norm.weight"] = (encoder.layer_input_size,)
    by_window = {window: _layer_shapes(encoder.with_window(window)) for window in encoder.windows}
    for layer, window in enumerate(encoder.windows):
        roles = by_window[window]
        if encoder.convolutions is not None and layer in encoder.convolutions.layers:
            roles = _with_convolution(roles, encoder, encoder.convolutions)
        if encoder.experts is not None and layer in encoder.experts.layers:
            roles = _with_experts(roles, encoder, encoder.experts)
        shapes |= {f"layers.{layer}.{role}": shape for role, shape in roles.items()}
    if encoder.norms_embeddings:
        # The norm of the embeddings replaces it.
        for name in _norm_shapes("layers.0.attention_norm", encoder):
            del shapes[name]
    return shapes


def linear_roles(encoder: Encoder) -> tuple[str, ...]:
    """Return the roles of a transformer's linear layers: `layers.0.q` and so on."""
    return tuple(
        role.removesuffix(".weight")
        for role, shape in encoder_shapes(encoder).items()
        if role.startswith("layers.") and len(shape) == 2 and not is_expert(role)
    )


def is_expert(role: str) -> bool:
    """Return whether a role is a matrix of experts."""
    return role.startswith("layers.") and role.split(".")[2] in EXPERT_LAYERS


def linear_weights(encoder: Encoder) -> int:
    """Return the number of weights of a transformer's linear layers."""
    shapes = encoder_shapes(encoder)
    return sum(math.prod(shapes[f"{role}.weight"]) for role in linear_roles(encoder))


def fused_roles(role: str, roles: Collection[str]) -> tuple[str, ...]:
    """Return those of the linear layers `roles` that engines compute as one matrix with `role`.

    The result includes `role` itself; it is empty for a layer that is computed alone.
    """
    stem, _, leaf = role.rpartition(".")
    group = next((group for group in FUSED_LAYERS if leaf in group), ())
    return tuple(other for name in group if (other := f"{stem}.{name}") in roles)


def module_shapes(module: Dense | LayerNorm) -> Shapes:
    """Return the leaves (weight, bias, residual.weight) of a module, and their shapes."""
    shapes: Shapes
    if isinstance(module, LayerNorm):
        shapes = {"weight": (module.dim,), "bias": (module.dim,)}
    else:
        shapes = {
            "weight": (module.out_features, module.in_features),
            "bias": (module.out_features,),
        }
    if not module.has_bias:
        del shapes["bias"]
    if (
        isinstance(module, Dense)
        and module.has_residual
        and module.in_features != module.out_features
    ):
        shapes[RESIDUAL] = shapes["weight"]
    return shapes


def tensor_rows(role: str, family: Family) -> FusedSlice:
    """Return where a family stores a role: the tensor name without prefix, and its rows."""
    template, layer, leaf = role, "", ""
    if role.startswith("layers."):
        _, layer, rest = role.split(".", 2)
        template = "layers.{i}." + rest
    if template not in family.tensors:
        template, dot, leaf = template.rpartition(".")
        leaf = dot + leaf
    stored = family.tensors[template]
    if isinstance(stored, str):
        stored = FusedSlice(stored)
    return replace(stored, name=stored.name.replace("{i}", layer) + leaf)


def tensor_name(role: str, family: Family) -> str:
    """Return the name, without prefix, of the tensor that holds a role; it may hold others too."""
    return tensor_rows(role, family).name


def tensor_prefix(family: Family, names: Collection[str]) -> str | None:
    """Return the prefix of the transformer's tensors among `names`; None if `tokens` is missing."""
    anchor = tensor_name("tokens", family)
    return next((prefix for prefix in family.prefixes if prefix + anchor in names), None)


def _layer_shapes(encoder: Encoder) -> Shapes:
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    queries = encoder.num_heads * encoder.head_dim
    keys = encoder.num_kv_heads * encoder.head_dim
    linears = {
        "q": (queries, hidden, encoder.has_qkv_bias),
        "k": (keys, hidden, encoder.has_qkv_bias),
        "v": (keys, hidden, encoder.has_qkv_bias),
        "o": (hidden, queries, encoder.has_output_bias),
        "up": (inner, hidden, encoder.has_mlp_bias),
        "down": (hidden, inner, encoder.has_down_bias),
    }
    if encoder.is_gated:
        linears["gate"] = linears["up"]
    shapes: Shapes = {}
    for stem, (rows, columns, has_bias) in linears.items():
        shapes[f"{stem}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{stem}.bias"] = (rows,)
    shapes |= _norm_shapes("attention_norm", encoder) | _norm_shapes("mlp_norm", encoder)
    if encoder.norm_placement == "sandwich" or encoder.norms_attention_twice:
        shapes |= _norm_shapes("attention_out_norm", encoder)
    if encoder.norm_placement == "sandwich":
        shapes |= _norm_shapes("mlp_out_norm", encoder)
    if encoder.has_qk_norm and encoder.qk_norm_joins_heads:
        shapes |= _norm_shapes("q_norm", encoder) | _norm_shapes("k_norm", encoder)
    elif encoder.has_qk_norm:
        shapes |= {"q_norm.weight": (encoder.head_dim,), "k_norm.weight": (encoder.head_dim,)}
    if encoder.layer_input_size is not None:
        shapes |= {
            "input_gate.weight": (encoder.layer_input_size, hidden),
            "input_projection.weight": (hidden, encoder.layer_input_size),
            "input_norm.weight": (hidden,),
            "scalar": (1,),
        }
    return shapes


def _with_experts(shapes: Shapes, encoder: Encoder, experts: Experts) -> Shapes:
    """Return a layer's shapes with experts in place of its MLP."""
    hidden, inner = encoder.hidden_size, experts.count * encoder.intermediate_size
    kept = {role: shape for role, shape in shapes.items() if role.split(".")[0] not in MLP_LAYERS}
    return kept | {
        "router.weight": (experts.count, hidden),
        "experts_up.weight": (inner, hidden),
        "experts_down.weight": (inner, hidden),
        "experts_down.bias": (hidden,),
    }


def _with_convolution(shapes: Shapes, encoder: Encoder, convolutions: Convolutions) -> Shapes:
    """Return a layer's shapes with a convolution in place of its attention."""
    hidden = encoder.hidden_size
    kept = {
        role: shape for role, shape in shapes.items() if role.split(".")[0] not in ATTENTION_LAYERS
    }
    for stem, shape in (
        ("conv_in", (3 * hidden, hidden)),
        ("conv", (hidden, 1, convolutions.width)),
        ("conv_out", (hidden, hidden)),
    ):
        kept[f"{stem}.weight"] = shape
        if convolutions.has_bias:
            kept[f"{stem}.bias"] = shape[:1]
    return kept


def _norm_shapes(stem: str, encoder: Encoder) -> Shapes:
    has_bias = encoder.norm == "layer_norm" and encoder.has_norm_bias
    leaves = ("weight", "bias") if has_bias else ("weight",)
    return {f"{stem}.{leaf}": (encoder.hidden_size,) for leaf in leaves}
