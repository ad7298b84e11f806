"""Tiny batches, which remove what a batch that failed has left in a compiled model.

The library gives operators their memory before it runs them, and looks only whether a size is
another one than when an operator last ran. A batch that fails, for lack of memory above all, leaves
operators that have its size and did not run at it: the next batch of the size before fails as well,
or gets wrong vectors. Two tiny batches differ from each other in all sizes, so one of them does so
from the batch before. Source: docs/measurements/memory.md, behind a lack of memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.openvino.graphs.stages import HIDDEN, Request
from embedlib.engines.openvino.running.inputs import infer_batch
from embedlib.engines.openvino.running.kept_prefixes import KeptPrefixes

SIZES: Final = (1, 2)
"""Sequences of a batch; each has a token more, behind a prefix of as many."""


def compute_tiny_batches(
    request: Request, prefixes: KeptPrefixes, hidden: NDArray[np.floating] | None = None
) -> None:
    """Compute them.

    Args:
        request: of the compiled model; computes no other batch at the same time.
        prefixes: of the model.
        hidden: float32[B, L, H] or bfloat16, such as the model begins with; None: it is whole.

    Raises:
        RuntimeError, MemoryError: the last one failed.
    """
    first, last = SIZES
    with suppress(RuntimeError):  # it may have the size before; the next one has not
        _compute(first, request, prefixes, hidden)
    _compute(last, request, prefixes, hidden)


def _compute(
    size: int, request: Request, prefixes: KeptPrefixes, hidden: NDArray[np.floating] | None
) -> None:
    lens = np.full(size, size + 1, np.int32)
    batch = Batch(
        lane=Lane.QUERY,
        token_ids=np.zeros(lens.sum(), np.int32),
        cu_seqlens=np.append(0, lens.cumsum()).astype(np.int32),
        num_prompt_tokens=np.zeros_like(lens),
        num_type0_tokens=lens,
    )
    given = {}
    if hidden is not None:
        given[HIDDEN] = np.zeros((size, size + 1, hidden.shape[2]), hidden.dtype)
    infer_batch(request, batch, {**prefixes.zeros(size), **given})
