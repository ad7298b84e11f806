"""Into how many stages a graph is cut, and when their memory is returned."""

from __future__ import annotations

from typing import Final

MAX_LOWER_STAGES: Final = 8
"""In a lower precision than float32: a lone query is sooner there, and a stage takes it as long.
Source: docs/measurements/queries-beside-bulk.md, more stages in float32."""
MIN_TRIMMED_ROWS: Final = 256
"""Tokens of a batch from which on a stage lets go of its memory, and the last one returns it to the
system. To return it behind each stage takes a tenth to a third of a batch's time, never to return
it more memory: glibc keeps it in pieces. Source: docs/measurements/memory.md, batches of a
shared model."""
MAX_TOGETHER_TOKENS: Final = 1 << 15
"""Of batches that a `LayerwiseEngine` computes together: it keeps a row of each token, 512 MiB at
7 billion weights. All built-in texts of `fidelity` fit."""


def max_stages(num_layers: int, *, is_float32: bool) -> int:
    """Return into how many stages a graph is cut at most.

    In float32 each layer is one. A batch of 400 tokens takes as long as some 24 queries, so a query
    beside it, which waits for a stage, takes about twice as long as alone. Source: as above.
    """
    return num_layers if is_float32 else min(MAX_LOWER_STAGES, num_layers)
