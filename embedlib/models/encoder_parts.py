"""Parts of a transformer that only some families have: frozen types without behavior, as in `spec`.

`rope.py` and `position_bias.py` compute the numbers of those that say how positions enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3"]
ROPE_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding, and how it extends beyond the trained length.

    Fields that a kind does not use keep their defaults. `rope.py` computes the frequencies.
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

    Half of the buckets are for keys after the query, half for keys before it. Within each half, the
    first half of the buckets hold one distance each, the others hold growing ranges, and the last
    one holds all distances from `max_distance` on. `position_bias.py` maps distances to buckets.
    """

    num_buckets: int
    max_distance: int
    is_alone: bool = False
    """True: there is no table of absolute positions beside it."""


@dataclass(frozen=True, kw_only=True)
class LinearBias:
    """ALiBi: the bias of a score is the distance times a negative number of the head.

    There is no table of absolute positions beside it. Source: Press et al., Train Short, Test Long
    (arXiv:2108.12409); in both directions as in Guenther et al., Jina Embeddings 2
    (arXiv:2310.19923), section 3.1.
    """


@dataclass(frozen=True, kw_only=True)
class RelativePositions:
    """Vectors for distances, whose products with queries and keys are added to the scores.

    With the bucket r of the distance of a query i to a key j, the score is
    q_i . k_j + q_i . K(r) + k_j . Q(r), where Q and K are the layer's own projections of the
    vector of r. Source: He et al., DeBERTa (arXiv:2006.03654), equation 4, without the values'
    positions and with shared projections, as DeBERTa-v3 has them.
    """

    num_buckets: int
    """Of either direction; there are twice as many vectors."""
    max_distance: int


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP of some layers.

    A router gives every expert a share by softmax. The `num_chosen` experts with the largest
    shares compute down(act(up(x))), and their results are added, each times its share. The shares
    of those chosen are not scaled to a sum of 1. Source: Nussbaum et al., Training Sparse Mixture
    Of Experts Text Embedding Models (arXiv:2502.07972), section 3, without weight normalization.
    """

    count: int
    num_chosen: int
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WideHeads:
    """The heads of the layers without a window, where they differ from those of the others."""

    head_dim: int
    num_kv_heads: int


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Convolutions in place of the attention of some layers.

    With the thirds b, c and x of a projection of each token's vector, a layer adds
    out(c * y), where y is the sum of b * x over the `width` tokens around the token, each channel
    times weights of its own; there are zeros before and behind a text. Source: Lfm2ShortConv in
    transformers 5.23, models/lfm2, centred as in modeling_lfm2_bidirectional.py of
    huggingface.co/LiquidAI/LFM2.5-Embedding-350M.
    """

    layers: tuple[int, ...]
    width: int
    """An odd number: as many tokens on either side."""
    has_bias: bool
