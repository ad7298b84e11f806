"""The word `pooled_rows`, which `excluded` may contain besides the names of layers.

The pooled rows, one per sequence, are what a vector is made of. With this word the engine computes
them in bfloat16 through all layers, beside all rows in FP8. This costs one pass over the bfloat16
weights for a few rows. Requires CLS or last-token pooling.
"""

from __future__ import annotations

from typing import Final

from embedlib.models.spec import ModelSpec, Pooling, PoolingMode

POOLED_ROWS: Final = "pooled_rows"
SINGLE_TOKEN_MODES: Final[frozenset[PoolingMode]] = frozenset({"cls", "last_token"})


def pooled_modes(spec: ModelSpec) -> tuple[PoolingMode, ...]:
    """Return the pooling modes if each takes one token; empty if any pools all tokens."""
    pooling = next((module for module in spec.modules if isinstance(module, Pooling)), None)
    modes = pooling.modes if pooling else ()
    return modes if SINGLE_TOKEN_MODES.issuperset(modes) else ()
