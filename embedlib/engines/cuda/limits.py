"""Sizes that are known before torch is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from embedlib.models.spec import ModelSpec

MAX_BATCH_TOKENS: Final = 16_384
"""Enough rows to fill the matrix units; an estimate, to be measured."""


def batch_room(spec: ModelSpec, max_batch_tokens: int | None) -> int:
    """Return the tokens that memory is taken for: a batch is at least one sequence of full length.

    Args:
        spec: the model.
        max_batch_tokens: the token budget; None: this engine's own.
    """
    return max(max_batch_tokens or MAX_BATCH_TOKENS, spec.max_seq_tokens)
