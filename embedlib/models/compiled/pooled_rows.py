"""The word `pooled_rows`, which a list of what FP8 leaves out may hold beside names of layers.

The rows that pooling takes, one of a sequence, are what a vector is made of. With this word they
are computed in bfloat16 through all layers, beside all others in FP8: a pass over the bfloat16
weights for a few rows. It wants a model that pools the first or the last token.
"""

from __future__ import annotations

from typing import Final

from embedlib.models.spec import ModelSpec, Pooling, PoolingMode

POOLED_ROWS: Final = "pooled_rows"
SINGLE_TOKEN_MODES: Final[frozenset[PoolingMode]] = frozenset({"cls", "last_token"})


def pooled_modes(spec: ModelSpec) -> tuple[PoolingMode, ...]:
    """Return what a sequence's pooled rows are; nothing where vectors are made of all tokens."""
    pooling = next((module for module in spec.modules if isinstance(module, Pooling)), None)
    modes = pooling.modes if pooling else ()
    return modes if SINGLE_TOKEN_MODES.issuperset(modes) else ()
