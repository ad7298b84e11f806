"""Sizes that are known before torch is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embedlib.engines.gpu_memory import bytes_per_token
from embedlib.models.weights.tensor_roles import linear_weights
from embedlib.system.memory import GIB

if TYPE_CHECKING:
    from embedlib.models.spec import Encoder, ModelSpec

MAX_FEW_ROWS: Final = 64
"""Rows of a product up to which `kernels.few_rows` may compute it."""
ALWAYS_SHORT_TOKENS: Final = 512
"""Batches of up to so many tokens are recorded for every model, and those of bulk up to so many."""
MOST_SHORT_TOKENS: Final = 4096
"""Batches of up to so many are recorded for a small model: more than 512 that waited were launched
from Python, in 20 to 90 ms, while more came. Source: docs/measurements/gpu.md, the second run."""
FP8_WORK: Final = 0.6
"""Work of an FP8 operation (`groups`). Source: 780e12 over about 1300e12 per second, estimated."""
MAX_SHORT_WORK: Final = 1e13
"""Maximum work (`groups`) of a recorded batch of more tokens, since another query waits for all of
it: 15 ms on an H200. A model of 7 billion numbers in FP8 has 1,024 tokens then."""
LEAST_BATCH_TOKENS: Final = 16_384
"""Enough rows to fill the matrix units."""
MOST_BATCH_TOKENS: Final = 65_536
"""With half of them BERT-large is 1 % slower in bf16; more were not measured. Source:
docs/measurements/gpu.md, tokens of a batch on a GPU."""
BATCH_BYTES: Final = 2.5 * GIB
"""Activations of a batch of more tokens. In a small model each kernel takes less time than its
launch from Python, unless it has more rows. Measured on an H100 for BERT-large in FP8: 724,000
tokens/s with 16,384, 976,000 with 65,536 (docs/measurements/gpu.md)."""


def most_short_tokens(encoder: Encoder, precision: str) -> int:
    """Return how many tokens a batch may have that is recorded, see `short_batches`."""
    work = 2.0 * linear_weights(encoder) * (FP8_WORK if precision == "fp8" else 1)
    return max(ALWAYS_SHORT_TOKENS, min(MOST_SHORT_TOKENS, int(MAX_SHORT_WORK / work)))


def default_batch_tokens(encoder: Encoder) -> int:
    """Return the token budget of a batch: a power of two."""
    budget = LEAST_BATCH_TOKENS
    while budget < MOST_BATCH_TOKENS and 2 * budget * bytes_per_token(encoder) <= BATCH_BYTES:
        budget *= 2
    return budget


def batch_room(spec: ModelSpec, max_batch_tokens: int) -> int:
    """Return the tokens that memory is taken for: a sequence of full length is a batch, too."""
    return max(max_batch_tokens, spec.max_seq_tokens)


def fitting_batch_tokens(spec: ModelSpec, fits: Callable[[int], bool]) -> int:
    """Return the default token budget, halved until its batches fit or it is the least.

    Args:
        spec: the model.
        fits: whether there is memory for a batch of so many tokens.
    """
    budget = default_batch_tokens(spec.encoder)
    while budget > LEAST_BATCH_TOKENS and not fits(batch_room(spec, budget)):
        budget //= 2
    return budget
