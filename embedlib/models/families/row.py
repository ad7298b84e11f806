"""What a row of the families table is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embedlib.models.spec import (
    ROPE_KINDS,
    Activation,
    PoolingMode,
    PositionBias,
    RopeKind,
)

RopeScaling = RopeKind | Literal["ntk"]
"""What `rope_scaling` may call its kind. ntk is no kind of its own: it stretches as linear does, by
another factor and with another theta."""


@dataclass(frozen=True)
class Key:
    """A trait that config.json decides."""

    name: str
    default: Any = None
    """What transformers takes where the key is missing."""


@dataclass(frozen=True)
class Rows:
    """One of several equal blocks of rows of a stored tensor: a projection fused with others."""

    name: str
    index: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Alternation:
    """Layers with a window between layers without one, where `layer_types` does not list them."""

    every: int | Key
    """One layer in so many has no window."""
    full: Literal["first", "last"]
    """Which one of them it is."""
    halves: bool
    """Where attention is not causal, the key's number counts both sides of a token together."""


@dataclass(frozen=True, kw_only=True)
class HeadLayer:
    """A layer behind the pooling of a `...ForSequenceClassification`."""

    tensors: str
    """What stands before `.weight` and `.bias` in the files, prefix included."""
    is_norm: bool = False
    activation: Activation | Key = "identity"
    has_bias: bool | Key = True


@dataclass(frozen=True, kw_only=True)
class SequenceHead:
    """What the class `...ForSequenceClassification` of a family puts on the transformer."""

    pooling: PoolingMode | Key
    skipped_token: Key | None = None
    """The key with the id that the class does not take for the last token."""
    layers: tuple[HeadLayer, ...]
    """The last one has a row for every label."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table."""

    model_type: str
    # Traits: a constant, or the key that holds them.
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: float | Key
    has_norm_bias: bool | Key = True
    norm_placement: Literal["pre", "post", "sandwich"]
    norms_embeddings: bool = False
    scales_embeddings: bool = False
    """True: by the square root of the hidden size."""
    is_gated: bool
    activation: Activation | Key
    positions: Literal["learned", "learned_after_padding", "rotary"]
    """learned_after_padding: rows of the table start behind the row of the padding id."""
    num_positions: tuple[str, ...] = ("max_position_embeddings",)
    """The first of these keys that is there counts."""
    position_bias: PositionBias | None = None
    rope_theta: Key | None = None
    """Where positions are rotary."""
    window_rope_theta: Key | None = None
    """Where layers with a window turn with a theta of their own, never stretched."""
    rope_kinds: tuple[RopeScaling, ...] = ROPE_KINDS
    num_token_types: Key | None = None
    num_kv_heads: Key | None = None
    """None: as many as query heads."""
    head_dim: Key | None = None
    """None, or a key that is null: hidden size / query heads."""
    is_causal: Key | None = None
    """None: every token sees every token, unless `is_bidirectional` is false."""
    is_bidirectional: Key | None = None
    """A key that says the opposite of `is_causal`."""
    windows: Literal["none", "all_layers", "by_layer_type", "alternating"] = "none"
    window: Key | None = None
    """Where there are windows."""
    alternation: Alternation | None = None
    """Where windows are alternating."""
    query_scalar: Key | None = None
    """s: scores are divided by its square root; None: by that of the head size."""
    attention_cap: Key | None = None
    has_qk_norm: bool = False
    has_qkv_bias: bool | Key = True
    has_output_bias: bool | Key = True
    has_mlp_bias: bool | Key = True
    has_down_bias: bool | Key | None = None
    """None: as `has_mlp_bias`."""
    # The rest of config.json
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names of keys; where a file has several they must agree."""
    implied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A key, and keys that must be there with it: it is the mark of a schema in which their absence
    means what is not implemented."""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that would change the vectors, with the only values implemented."""
    harmless: frozenset[str] = frozenset()
    """Keys of this family alone that change no vector."""
    own_code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By key of `auto_map`, classes there that the row stands for."""
    # Files
    tokenizer_class: str | None = None
    """The class transformers takes where tokenizer_config.json names none."""
    prefixes: tuple[str, ...]
    """What may stand before every tensor name, by the class or library that wrote the file."""
    tensors: Mapping[str, str | Rows]
    """Role to tensor name, `{i}` is the layer; a name without leaf stands for all its leaves."""
    stores_norms_less_one: bool = False
    """The weights of norms are stored as their difference from 1."""
    ignored_tensors: tuple[str, ...]
    """Patterns of stored tensors that an embedding does not use."""
    # Heads
    sequence_head: SequenceHead | None = None
    """None: there is no such class, or it is not implemented."""
    lm_head: str | None = None
    """What `...ForCausalLM` calls the matrix that makes a token's logit of the last vector; None:
    there is none, or it does more than multiply."""
