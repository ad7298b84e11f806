"""What a model is, as data: frozen types and nothing else.

`files.py` fills them from a model folder, `engines/*` lower them. Neither torch nor a file format
is known here.

Shapes in this package are written `dtype[dims]`: N texts, B sequences, T packed tokens, L padded
length, H hidden, D embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid", "identity"]
PoolingMode = Literal["cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3"]
ScoreActivation = Literal["sigmoid", "softmax", "identity"]

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
ROPE_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding and how it is stretched beyond the trained length.

    Fields that a kind does not use keep their defaults; `rope.py` turns this into frequencies.
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_positions: int = 0
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    # yarn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class PositionBias:
    """A learned number for every head and distance, added to the attention scores of all layers.

    Half of the buckets are for keys behind the query, half for keys before it. In each half the
    first half of the buckets hold one distance each, the others a range that grows, and the last
    one all from `max_distance` on. `position_bias.py` turns distances into buckets.
    """

    num_buckets: int
    max_distance: int


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The transformer: token ids in, one hidden vector per token out."""

    family: str
    """HF `model_type`: the row of the families table this came from."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    activation: Activation
    is_gated: bool
    """True: down(act(gate(x)) * up(x)). False: down(act(up(x)))."""
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: float
    has_norm_bias: bool = True
    """Of a layer norm; an RMS norm never has one."""
    norm_placement: Literal["pre", "post", "sandwich"]
    """pre: x + f(norm(x)), and a final norm. post: norm(x + f(x)), and a norm on the embeddings.
    sandwich: x + norm(f(norm(x))), and a final norm."""
    norms_embeddings: bool = False
    """Only with pre: the first layer's attention norm stands before its residual branches off, so
    that x itself is normed."""
    embedding_scale: float = 1.0
    """What the embeddings of the tokens are multiplied by."""
    num_positions: int
    """Rows of the learned position table, or the trained length where positions are rotary."""
    position_offset: int = 0
    """Row of the first token in the position table: 0 for BERT, padding id + 1 for RoBERTa."""
    pad_token_id: int | None = None
    """Only where positions skip it (RoBERTa); padding is told by lengths, never by this id."""
    num_token_types: int = 0
    rope: Rope | None = None
    """None: learned absolute positions."""
    window_rope: Rope | None = None
    """Takes the place of `rope` in layers that have a window; None: all layers turn alike."""
    position_bias: PositionBias | None = None
    is_causal: bool = False
    windows: tuple[int | None, ...]
    """Per layer; None: no window. Causal: a token sees itself and `window - 1` tokens before it.
    Not causal: it sees itself and `window` tokens on either side."""
    attention_scale: float | None = None
    """What queries times keys is multiplied by; None: 1 / sqrt(head_dim)."""
    attention_cap: float | None = None
    """c: a score x becomes c * tanh(x / c), before the mask; None: it stays as it is."""
    has_qk_norm: bool = False
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    """Of up and gate."""
    has_down_bias: bool
    """Apart from the others', since the gated layers of gte's own code have this one alone."""


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """Token vectors to one vector; several modes are concatenated in this order."""

    modes: tuple[PoolingMode, ...]
    include_prompt: bool = True
    """False: the prompt's tokens are left out of the pooling (Instructor models)."""
    skipped_token_id: int | None = None
    """Only for last_token: a token with this id is never the last one, unless all are."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """activation(x @ weight.T + bias) on the pooled vector."""

    in_features: int
    out_features: int
    has_bias: bool
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Layer norm of the pooled vector."""

    dim: int
    eps: float = 1e-5
    has_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Scale to unit length."""


Module = Pooling | Dense | LayerNorm | Normalize


@dataclass(frozen=True, kw_only=True)
class PairTemplate:
    """How a decoder that answers yes or no is asked about a query and a document.

    The token ids are those of `prefix`, of the filled `body` and of `suffix`, one behind the other,
    with no special tokens between or around them; only the body's document is ever cut.
    """

    prefix: str
    body: str
    """With `{instruction}` where there is one, `{query}` and `{document}`."""
    suffix: str
    instruction: str = ""
    """What the model was trained with."""
    lines_apart: bool = False
    """True: the lines of the body, and the line ends between them, are tokenized one by one."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the numbers of a scoring model mean; the modules end in one number per label."""

    labels: tuple[str, ...]
    """In the order of the numbers; a reranker or reward model has one."""
    activation: ScoreActivation
    """What a classifier makes of the numbers."""
    reranker_activation: ScoreActivation = "sigmoid"
    """What a reranker makes of them; the files say the two in different places."""
    template: PairTemplate | None = None
    """None: a pair is encoded as the tokenizer's own template says."""
    has_chat_template: bool = False
    """True: a pair would be written by a program in the folder, which is not run."""
    has_token_types: bool = True
    """False: the model is given no types of tokens, though it may know them; all are of type 0."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything that decides a text's vector, except the weights and the tokenizer."""

    encoder: Encoder
    modules: tuple[Module, ...]
    """What follows the transformer, in the order of `modules.json`; the first is a Pooling. Where
    there is none, the others are applied to every token, and the result is one row per token."""
    embedding_dim: int
    """D, before `truncate_dim`."""
    max_seq_tokens: int
    """Longest sequence, special tokens included."""
    max_seq_tokens_source: str
    """The file and key that set `max_seq_tokens`."""
    lowercase: bool = False
    """`do_lower_case` of sentence-transformers; the tokenizer of `load_tokenizer` does it."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None
    head: Head | None = None
    """None: the vectors are embeddings. Else they are scores before the activation, and
    `embedding_dim` is the number of labels."""

    @property
    def pooling(self) -> Pooling:
        """The pooling module."""
        first = self.modules[0]
        assert isinstance(first, Pooling), "modules start with a Pooling; this is a bug in embedlib"
        return first

    @property
    def is_normalized(self) -> bool:
        """Whether the model's own vectors have unit length."""
        return isinstance(self.modules[-1], Normalize)
