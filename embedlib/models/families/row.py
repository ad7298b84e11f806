"""The types of a row of the families table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from embedlib.models.encoder_parts import ROPE_KINDS, RopeKind
from embedlib.models.spec import Activation, Module, PoolingMode

UNLIMITED_POSITIONS: Final = 4096
"""For a family without a limit of its own: eight times the longest text of any known model."""

RopeScaling = RopeKind | Literal["ntk"]
"""Kinds that `rope_scaling` may name. ntk is not a `RopeKind`: the reader converts it to linear
with another factor and another theta."""


@dataclass(frozen=True)
class Key:
    """A trait that is read from a key of config.json."""

    name: str
    default: Any = None
    """The default of transformers if the key is missing."""


@dataclass(frozen=True)
class FusedSlice:
    """One of several equal blocks of rows of a stored tensor: a projection fused with others."""

    name: str
    index: int = 0
    count: int = 1


TensorNames = Mapping[str, str | FusedSlice]
"""Role to tensor name. `{i}` is the layer; a name without a leaf covers all its leaves."""


@dataclass(frozen=True, kw_only=True)
class Alternation:
    """Which layers have a window and which do not, if `layer_types` does not list them."""

    every: int | Key
    """The period: one layer in every group of this many has no window."""
    full: Literal["first", "last"]
    """Which layer of a group has no window."""
    halves: bool
    """True: if attention is not causal, the value of `window` counts both sides of a token
    together."""


@dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """The keys of a mixture of experts; see `Experts`."""

    count: Key
    chosen: Key
    every: Key
    """n: every n-th layer has experts, the second one first."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionKeys:
    """The keys of convolutions in some layers; see `Convolutions`.

    `layer_types` names these layers, or `full_attn_idxs` the others.
    """

    width: Key
    has_bias: Key


@dataclass(frozen=True, kw_only=True)
class InnerSizeKeys:
    """The keys by which `intermediate_size` becomes another number, if `adjusts` is true.

    Two thirds of it, times the factor, are rounded down twice and then up to a multiple.
    """

    adjusts: Key
    factor: Key
    multiple: Key


@dataclass(frozen=True, kw_only=True)
class HeadLayer:
    """A layer after the pooling of a `...ForSequenceClassification`."""

    tensors: str
    """The tensors' name without `.weight` and `.bias`, prefix included."""
    is_norm: bool = False
    activation: Activation | Key = "identity"
    has_bias: bool | Key = True


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A matrix without bias by which the class multiplies every token's vector at its end.

    It is applied behind the pooling, which gives the same for a mean or one token.
    """

    tensor: str
    """The tensor's name without `.weight` and the model's prefix."""
    features: Key
    """The key of its number of rows."""


@dataclass(frozen=True, kw_only=True)
class SequenceHead:
    """The head that the family's `...ForSequenceClassification` adds to the transformer."""

    pooling: PoolingMode | Key
    skipped_token: Key | None = None
    """The key of the token id that last-token pooling skips; see `Pooling.skipped_token_id`."""
    layers: tuple[HeadLayer, ...]
    """The last layer has one row per label."""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that would change the scores alone, with the only values implemented."""


def cls_head(
    dense: str, activation: Activation | Key = "tanh", last: str = "classifier"
) -> SequenceHead:
    """Return the head of BERT and its like: two matrices behind the first token."""
    layers = (HeadLayer(tensors=dense, activation=activation), HeadLayer(tensors=last))
    return SequenceHead(pooling="cls", layers=layers)


@dataclass(frozen=True, kw_only=True)
class Nested:
    """A config.json that describes the transformer for texts in an object of its own."""

    key: str
    model_type: str
    """That of the object, whose row it is."""
    harmless: frozenset[str]
    """Keys beside it that change no vector of a text."""


@dataclass(frozen=True, kw_only=True)
class MaskedHead:
    """The head of the family's `...ForMaskedLM`: layers, and a matrix with a row per token."""

    layers: tuple[HeadLayer, ...]
    decoder: str
    """The matrix's name without `.weight` and `.bias`. A file that ties it to the token embeddings
    does not store it."""
    bias: str | None = None
    """The bias's other name; `decoder` and `.bias` is the first."""
    has_bias: bool | Key = True


def masked_head(
    dense: str,
    norm: str,
    decoder: str,
    bias: str | None = None,
    activation: Activation | Key = "gelu",
) -> MaskedHead:
    """Return the head of BERT and its like: a matrix and a norm in front of the decoder."""
    layers = (
        HeadLayer(tensors=dense, activation=activation),
        HeadLayer(tensors=norm, is_norm=True),
    )
    return MaskedHead(layers=layers, decoder=decoder, bias=bias)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the families table."""

    model_type: str
    name: str = ""
    """Set if the row is another row's `own_rows`: its name in the table."""
    # Traits: a constant, or the key of config.json that holds the value.
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: float | Key
    has_norm_bias: bool | Key = True
    norm_placement: Literal["pre", "post", "sandwich"]
    norms_embeddings: bool = False
    scales_embeddings: bool = False
    """True: token embeddings are multiplied by the square root of the hidden size."""
    embedding_size: Key | None = None
    """Set if the class has narrower tables where this is not the hidden size."""
    is_gated: bool
    activation: Activation | Key
    gelu_is_tanh: bool = False
    """True: the class reads the name gelu as that of its tanh form."""
    positions: Literal["learned", "learned_after_padding", "rotary", "relative", "bias"]
    """learned_after_padding: the first token's row follows the row of the padding id. bias: the
    bias of attention scores is all there is."""
    num_positions: tuple[str, ...] = ("max_position_embeddings",)
    """Names of the key; the first that the file contains is read. Empty: the class has no limit,
    and `UNLIMITED_POSITIONS` stands for it."""
    bias_buckets: int | Key | None = None
    """Set if every distance has a learned bias: how many there are for a head."""
    bias_distance: int | Key | None = None
    """The distance from which on all have the same bias."""
    has_alibi: bool = False
    """True: attention scores fall linearly with the distance; see `LinearBias`."""
    relative_buckets: Key | None = None
    """Set if positions are relative."""
    projections: int = 1
    """How many products a score is the sum of: it is divided by sqrt(head size times this)."""
    rope_theta: Key | None = None
    """Set if positions are rotary."""
    window_rope_theta: Key | None = None
    """Set if layers with a window have another theta; `rope_scaling` does not apply to it."""
    rope_kinds: tuple[RopeScaling, ...] = ROPE_KINDS
    ends_at_original_length: bool = False
    """True: beyond `original_max_position_embeddings` the class multiplies queries by a number that
    grows with the position (Llama 4's scaling). That is not implemented, so texts end there."""
    num_token_types: Key | None = None
    num_task_types: Key | None = None
    num_kv_heads: Key | None = None
    """None: the number of query heads."""
    head_dim: Key | None = None
    """None, or a key that is null: hidden size / query heads."""
    is_causal: Key | bool | None = None
    """None: attention is not causal, unless the key `is_bidirectional` is false."""
    is_bidirectional: Key | None = None
    """A key with the opposite meaning of `is_causal`."""
    windows: Literal["none", "all_layers", "by_layer_type", "alternating"] = "none"
    window: Key | None = None
    """Set if there are windows."""
    alternation: Alternation | None = None
    """Set if `windows` is alternating."""
    query_scalar: float | Key | None = None
    """s: attention scores are divided by sqrt(s). None: by sqrt(head size)."""
    attention_cap: Key | None = None
    has_qk_norm: bool = False
    qk_norm_joins_heads: bool = False
    norms_attention_twice: bool = False
    has_v_norm: bool = False
    wide_heads: Key | None = None
    """Set if layers without a window have other heads; the key holds those of every layer."""
    layer_input_size: Key | None = None
    has_qkv_bias: bool | Key = True
    has_output_bias: bool | Key = True
    has_mlp_bias: bool | Key = True
    has_down_bias: bool | Key | None = None
    """None: the same as `has_mlp_bias`."""
    experts: ExpertKeys | None = None
    convolutions: ConvolutionKeys | None = None
    inner_size: InnerSizeKeys | None = None
    # The rest of config.json
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names of keys. If a file contains several, their values must agree."""
    implied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A key that marks a schema, and the keys that such a file must contain: the schema's defaults
    for them are not implemented."""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that would change the vectors, with the only values implemented."""
    harmless: frozenset[str] = frozenset()
    """Keys that change no vector, only in this family."""
    own_code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By key of `auto_map`, the custom classes that this row implements. A name without a dot is
    that of a class in whatever file."""
    ends_by_flags: bool = False
    """True: a tokenizer class of the folder adds begin and end tokens as tokenizer_config.json
    says, and tokenizer.json does not."""
    chosen_by: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Only of `own_rows`: keys of config.json, and the values of which one chooses this row; none
    stands for every value but null, 0 and false."""
    own_rows: tuple[Family, ...] = ()
    """Rows for folders with the same `model_type` and another model: a key has one of the values of
    `chosen_by`, or, for a row without it, `auto_map` names one of the row's classes."""
    library_end: tuple[Module, ...] = ()
    """What the model's own library computes behind the transformer. Set if that library alone calls
    the class so that it attends as the row says: sentence-transformers does not, so a folder with
    its modules.json is refused. Empty: as sentence-transformers."""
    # Files
    tokenizer_class: str | None = None
    """The class that transformers takes for this model_type if no file names one; a file that names
    another one gets TokenizersBackend. None: it takes whatever class the files name."""
    prefixes: tuple[str, ...]
    """Possible prefixes of tensor names; the class or library that wrote the file adds one."""
    tensors: TensorNames
    stores_norms_less_one: bool = False
    """True: the files contain the weights of norms minus 1."""
    ignored_tensors: tuple[str, ...]
    """Patterns of stored tensors that an embedding does not use."""
    projection: Projection | None = None
    # Heads
    sequence_head: SequenceHead | None = None
    """None: the family has no such class, or it is not implemented."""
    masked_head: MaskedHead | None = None
    """None: the family has no such class, or it is not implemented."""
    ties_embeddings: bool = False
    """The default of `tie_word_embeddings`; a masked head is tied unless a file says otherwise."""
    lm_head: str | None = None
    """The tensor name of the matrix by which `...ForCausalLM` maps a vector to logits. None: there
    is no such class, or it does more than multiply."""

    @property
    def key(self) -> str:
        """The row's name in the table: that of its `model_type`, or its own."""
        return self.name or self.model_type

    def implements(self, key: str, own_class: object) -> bool:
        """Return whether the row implements a custom class that `auto_map` names under a key."""
        names = self.own_code.get(key, ())
        short = own_class.rpartition(".")[2] if isinstance(own_class, str) else None
        return own_class in names or short in names
