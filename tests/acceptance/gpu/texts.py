"""Texts: random token ids, the same for every contestant, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.measuring.sgemm import flop_per_token
from embedlib.models.spec import Encoder
from embedlib.testing import make_batch

if TYPE_CHECKING:
    import tokenizers

Ids = NDArray[np.int32]

MIXED: Final = "mixed"
MIXED_MEDIAN_TOKENS: Final = 180
"""Of passages; the logarithms of their lengths are normal with the deviation 1."""
MIXED_MAX_TOKENS: Final = 4096
NUM_MARKED_IDS: Final = 2
"""The last ids of a vocabulary, which no text has but those of the gate: the very last one stands
for a token that is not a number, the one before it for one with huge activations."""


def lengths_of(name: str, num_tokens: int, max_seq_tokens: int) -> list[int]:
    """Return the lengths of a set of texts.

    Args:
        name: a number of tokens, or "mixed".
        num_tokens: in all, at least.
        max_seq_tokens: the longest text.
    """
    if name != MIXED:
        return [int(name)] * max(2, -(-num_tokens // int(name)))
    random = np.random.default_rng(0)
    count = max(2, 2 * num_tokens // MIXED_MEDIAN_TOKENS)
    drawn = MIXED_MEDIAN_TOKENS * np.exp(random.standard_normal(count))
    lengths = np.clip(drawn, 2, min(MIXED_MAX_TOKENS, max_seq_tokens)).astype(int)
    enough = int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1
    found: list[int] = lengths[: max(2, enough)].tolist()
    return found


def texts_of(lengths: Sequence[int], vocab_size: int) -> list[Ids]:
    """Return int32[L] of random ids for every length, always the same."""
    random = np.random.default_rng(0)
    ids = random.integers(0, vocab_size - NUM_MARKED_IDS, sum(lengths)).astype(np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def batches_of(texts: Sequence[Ids], max_tokens: int) -> list[Batch]:
    """Return bulk batches of all texts in their order, each in the token budget or of one text."""
    parts: list[list[Ids]] = [[]]
    for text in texts:
        if parts[-1] and sum(map(len, parts[-1])) + len(text) > max_tokens:
            parts.append([])
        parts[-1].append(text)
    return [make_batch(part, Lane.BULK) for part in parts]


def batch_flops(encoder: Encoder, lengths: Sequence[int]) -> float:
    """Return the floating-point operations that the vectors of a batch need.

    Two for each weight of a linear layer and token, and four for each head dimension and pair of
    tokens that attend to one another. Operations that pruning saves are counted, as speed.
    """
    queries = encoder.num_heads * encoder.head_dim
    linear = flop_per_token(encoder) * sum(lengths)
    pairs = sum(n * (n + 1) / 2 if encoder.is_causal else n * n for n in lengths)
    return linear + 4.0 * encoder.num_layers * queries * pairs


def linear_shapes(encoder: Encoder) -> tuple[tuple[int, int], ...]:
    """Return (outputs, inputs) of a layer's products as the engine computes them: qkv as one."""
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    queries = encoder.num_heads * encoder.head_dim
    qkv = queries + 2 * encoder.num_kv_heads * encoder.head_dim
    wide = inner * (2 if encoder.is_gated else 1)
    return (qkv, hidden), (hidden, queries), (wide, hidden), (hidden, inner)


def id_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """Return a tokenizer that reads ids written as numbers: "7 21" is [7, 21]."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {str(number): number for number in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def written(ids: Ids) -> str:
    """Return the text that `id_tokenizer` reads as these ids."""
    return " ".join(map(str, ids.tolist()))


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return how long queries took."""
    marks = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    return {
        "num_queries": len(seconds),
        **{
            f"{name}_ms": float(np.percentile(seconds, mark)) * 1e3 if seconds else None
            for name, mark in marks.items()
        },
    }
