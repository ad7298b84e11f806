"""The description of a model as data: frozen types without behavior.

`reading/` fills them from a model folder, and the engines lower them. This module depends neither
on torch nor on a file format.

Shapes in this package are written `dtype[dims]`: N texts, B sequences, T packed tokens, L padded
length, H hidden, D embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from embedlib.config import LateSimilarity, Similarity
from embedlib.models.encoder_parts import (
    Convolutions,
    Experts,
    LinearBias,
    PositionBias,
    RelativePositions,
    Rope,
    WideHeads,
)

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid", "identity"]
PoolingMode = Literal["cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token"]
ScoreActivation = Literal["sigmoid", "softmax", "identity"]

SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The transformer: token ids in, one hidden vector per token out."""

    family: str
    """The key of the family's row in the table: HF `model_type`, or the row's own name."""
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
    """Whether layer norms have a bias. An RMS norm never has one."""
    norm_placement: Literal["pre", "post", "sandwich"]
    """pre: x + f(norm(x)), and a final norm. post: norm(x + f(x)), and a norm on the embeddings.
    sandwich: x + norm(f(norm(x))), and a final norm."""
    norms_embeddings: bool = False
    """Only with pre: the first layer's attention norm is applied before the residual branches off,
    so that x itself is normed."""
    embedding_scale: float = 1.0
    """Factor on the token embeddings."""
    embedding_size: int | None = None
    """E: the tables of tokens, positions and types have E numbers a row, of which a matrix behind
    their norm makes H. None: they have H. Source: Lan et al., ALBERT (arXiv:1909.11942) 3.1."""
    num_positions: int
    """Rows of the learned position table, or the trained length if positions are rotary."""
    position_offset: int = 0
    """Row of the first token in the position table: 0 for BERT, padding id + 1 for RoBERTa."""
    pad_token_id: int | None = None
    """Only if positions skip it (RoBERTa). Lengths mark the padding, never this id."""
    num_token_types: int = 0
    num_task_types: int = 0
    """Rows of a table of which the first is added to every token's vector (ERNIE 3)."""
    rope: Rope | None = None
    """None: learned absolute positions."""
    window_rope: Rope | None = None
    """Replaces `rope` in layers that have a window; None: all layers use `rope`."""
    position_bias: PositionBias | LinearBias | None = None
    relative_positions: RelativePositions | None = None
    """Set: there is no table of absolute positions."""
    is_causal: bool = False
    windows: tuple[int | None, ...]
    """Per layer; None: no window. Causal: a token attends to itself and the `window - 1` tokens
    before it. Not causal: it attends to itself and `window` tokens on either side."""
    attention_scale: float | None = None
    """Factor on queries times keys; None: 1 / sqrt(head_dim)."""
    attention_cap: float | None = None
    """c: an attention score x becomes c * tanh(x / c), before the mask. None: no cap."""
    has_qk_norm: bool = False
    qk_norm_joins_heads: bool = False
    """True: a layer norm of the queries, or keys, of all heads together. False: an RMS norm of
    each."""
    norms_attention_twice: bool = False
    """Only with post: norm(x + norm(x + f(x))), where f is attention."""
    has_v_norm: bool = False
    """Whether values pass through an RMS norm without a weight."""
    wide_heads: WideHeads | None = None
    layer_input_size: int | None = None
    """P: every layer ends in x := s (x + norm(proj(act(gate(x)) * p))), where s is a number of the
    layer and p, float[P], is the layer's part of an RMS norm of a projection of the token's first
    vector. None: it ends as it is. Source: EmbeddingGemma2TextPLE and EmbeddingGemma2TextPLEBlock
    in transformers 5.23, models/embedding_gemma2."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    """Whether up and gate have a bias."""
    has_down_bias: bool
    """Separate from `has_mlp_bias`: in gte's own code only down has a bias."""
    experts: Experts | None = None
    convolutions: Convolutions | None = None

    @property
    def max_tokens(self) -> int:
        """The number of tokens that there are positions for."""
        return self.num_positions - self.position_offset

    @property
    def table_width(self) -> int:
        """The numbers in a row of the tables of tokens, positions and types."""
        return self.embedding_size or self.hidden_size

    @property
    def score_scale(self) -> float:
        """Factor on queries times keys, see `attention_scale`."""
        return self.attention_scale or self.head_dim**-0.5

    @property
    def has_rope(self) -> bool:
        """Whether the layers rotate queries and keys, or those with a window do."""
        return self.rope is not None or self.window_rope is not None

    def rope_of(self, window: int | None) -> Rope | None:
        """Return the rotary embedding of the layers with this window; None: they have none."""
        return self.rope if window is None else self.window_rope or self.rope

    @property
    def has_position_table(self) -> bool:
        """Whether learned vectors of absolute positions are added to those of the tokens."""
        is_alone = isinstance(self.position_bias, LinearBias) or (
            self.position_bias is not None and self.position_bias.is_alone
        )
        return self.rope is None and self.relative_positions is None and not is_alone

    def with_window(self, window: int | None) -> Encoder:
        """Return the encoder with the heads of its layers with this window."""
        if self.wide_heads is None or window is not None:
            return self
        wide = self.wide_heads
        return replace(
            self, head_dim=wide.head_dim, num_kv_heads=wide.num_kv_heads, wide_heads=None
        )

    @property
    def is_table(self) -> bool:
        """Whether it is a static model: a table of token vectors, without a layer."""
        return self.num_layers == 0


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """How token vectors become one vector; several modes are concatenated in this order."""

    modes: tuple[PoolingMode, ...]
    include_prompt: bool = True
    """False: the pooling leaves out the prompt's tokens (Instructor models)."""
    skipped_token_id: int | None = None
    """last_token only: the last token whose id differs from this one is pooled; if there is none,
    the first."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """activation(x @ weight.T + bias), applied to the pooled vector."""

    in_features: int
    out_features: int
    has_bias: bool
    activation: Activation
    has_residual: bool = False
    """True: the input is added to the output; where their widths differ, times a matrix. Only in
    a late-interaction model."""


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Layer norm of the pooled vector."""

    dim: int
    eps: float = 1e-5
    has_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Scale to unit length."""


@dataclass(frozen=True, kw_only=True)
class RoundTanh:
    """round(127 tanh(x)): whole numbers from -127 to 127, compared by their cosine.

    Source: `Int8TanhQuantizer` in st_quantize.py of perplexity-ai/pplx-embed-v1-0.6b.
    """


@dataclass(frozen=True, kw_only=True)
class SpladePooling:
    """A weight for every token of the vocabulary: the pooled logits of a masked language model.

    With the logits l of L tokens, f(x) = log(1 + relu(x)), applied twice if `num_logs` is 2: the
    greatest of f(l), or their sum. The modules before it are the first layers of the model's head;
    its own matrix, one row per word, makes the logits.

    Source: Formal et al., SPLADE (arXiv:2107.05720) equation 1, and v2 (arXiv:2109.10086) equation
    6; Shen et al. (arXiv:2504.14839) for the second logarithm.
    """

    vocab_size: int
    strategy: Literal["max", "sum"] = "max"
    num_logs: Literal[1, 2] = 1
    has_bias: bool = True


Module = Pooling | Dense | LayerNorm | Normalize | RoundTanh | SpladePooling


@dataclass(frozen=True, kw_only=True)
class PairTemplate:
    """The prompt that makes a decoder answer yes or no about a query and a document.

    The token ids of `prefix`, the filled `body` and `suffix` are concatenated, without special
    tokens between or around them. Only the document in the body is ever truncated.
    """

    prefix: str
    body: str
    """Contains `{query}` unless the tail does, `{document}` at its end and, if the model takes one,
    `{instruction}`."""
    suffix: str
    tail: str = ""
    """Goes behind the document, is tokenized with it and is never truncated; may contain `{query}`
    and ` {instruction}`, which is left out if there is none."""
    instruction: str = ""
    """The instruction that the model was trained with."""
    lines_apart: bool = False
    """True: each line of the body, and each line end, is tokenized separately."""

    @property
    def takes_instruction(self) -> bool:
        """Whether it has a place for an instruction."""
        return "{instruction}" in self.body + self.tail


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the outputs of a scoring model mean; its modules end in one number per label."""

    labels: tuple[str, ...]
    """In the order of the outputs; a reranker or reward model has one label."""
    activation: ScoreActivation
    """The activation that a classifier applies to the outputs."""
    reranker_activation: ScoreActivation = "sigmoid"
    """The activation that a reranker applies. The files set the two in different places."""
    template: PairTemplate | None = None
    """None: the tokenizer's own template encodes a pair."""
    has_chat_template: bool = False
    """True: the folder has a chat template for pairs, a program that embedlib does not run."""
    has_token_types: bool | None = True
    """False: all tokens get type 0, even if the model has an embedding for other types. None: the
    files do not tell; that of one text has type 0 in any case, so that pairs alone are refused."""


@dataclass(frozen=True, kw_only=True)
class QueryExpansion:
    """Mask tokens behind a short query, each with a vector of its own."""

    min_tokens: int
    """Shorter queries are filled up to this length."""
    token: str
    is_attended: bool = False
    """Whether the other tokens attend to them; they themselves always attend to the query."""


@dataclass(frozen=True, kw_only=True)
class LateInteraction:
    """What turns a text into one vector per token, for a query and for a document (ColBERT)."""

    query_tokens: int
    """Maximum length of a query, special tokens included."""
    document_tokens: int
    """Maximum length of a document."""
    expansion: QueryExpansion | None
    skipped_words: tuple[str, ...] = ()
    """Tokens without a vector, such as punctuation; words that are no token have no effect."""
    skips_in_queries: bool = False
    skips_in_documents: bool = True
    markers: tuple[str, ...] = ()
    """Prompts that start with a token, such as `[unused0]`, that the tokenizer's files do not mark
    as one that is never divided."""
    similarity: LateSimilarity = "maxsim"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything that determines a text's vector, except the weights and the tokenizer."""

    encoder: Encoder
    modules: tuple[Module, ...]
    """The modules after the transformer, in the order of `modules.json`; the first is a Pooling.
    Of a sparse model the last is a SpladePooling, and those before it apply to every token. Without
    a pooling, all modules apply to every token, and the result is one row per token."""
    embedding_dim: int
    """D, before `truncate_dim`."""
    max_seq_tokens: int
    """Maximum length of a sequence, special tokens included."""
    max_seq_tokens_source: str
    """The file and key that set `max_seq_tokens`."""
    dropped_token_id: int | None = None
    """Tokens with this id are left out of a sequence (model2vec: the unknown token)."""
    lowercase: bool = False
    """`do_lower_case` of sentence-transformers; the tokenizer of `load_tokenizer` applies it."""
    suffix: str = ""
    """Goes behind every text, whatever its prompt is."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None
    max_active_dims: int | None = None
    """Of a sparse model: how many weights of a text are kept, the greatest; None: all."""
    head: Head | None = None
    """None: the outputs are embeddings. Otherwise they are scores before the activation, and
    `embedding_dim` is the number of labels."""
    late_interaction: LateInteraction | None = None
    """Set: a text has one vector of `embedding_dim` numbers for each of its tokens, and there is no
    Pooling among the modules."""

    @property
    def pooling(self) -> Pooling:
        """The pooling module."""
        first = self.modules[0]
        assert isinstance(first, Pooling), "modules start with a Pooling; this is a bug in embedlib"
        return first

    @property
    def has_pooling(self) -> bool:
        """Whether token vectors become one vector for each text."""
        return any(isinstance(module, Pooling) for module in self.modules)

    @property
    def is_splade(self) -> bool:
        """Whether a vector has a number for every token of the vocabulary, most of them 0."""
        return any(isinstance(module, SpladePooling) for module in self.modules)

    @property
    def is_sparse(self) -> bool:
        """Whether it makes weights of tokens: by SPLADE, or each token's own from a table."""
        # A row of a table of weights is one number.
        of_weights = self.encoder.is_table and self.encoder.hidden_size == 1
        return self.is_splade or (of_weights and not self.modules)

    @property
    def includes_prompt(self) -> bool:
        """Whether the prompt's tokens are pooled with those of the text."""
        first = self.modules[0] if self.modules else None
        return first.include_prompt if isinstance(first, Pooling) else True

    @property
    def is_normalized(self) -> bool:
        """Whether the model's last module scales its vectors to unit length."""
        return bool(self.modules) and isinstance(self.modules[-1], Normalize)
