"""Computes a static model in numpy: the mean of the rows of a text's tokens.

Source: `StaticEmbedding.forward` of sentence-transformers 6.2, and `StaticModel.encode` of
model2vec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, EngineLimits, InFlight
from embedlib.models.spec import ModelSpec
from embedlib.vectors.modules import apply_modules

MAX_BATCH_TOKENS: Final = 4096
"""The rows of a batch stay in a core's cache: 4 MB at 256 dimensions."""
MAX_PRODUCT: Final = 2304 * 4
"""Numbers of a matrix from which OpenBLAS divides its product with a vector among threads."""


class StaticEngine:
    """Computes every batch on the thread that brings it; it changes nothing of its own."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Any], *, max_batch_tokens: int | None = None
    ) -> None:
        """Make an engine.

        Args:
            spec: the model; without modules the result has one row per token.
            weights: its weights by role, of which `tokens` is the table.
            max_batch_tokens: token budget of a batch; None: the default.
        """
        self._modules = spec.modules
        self._weights = dict(weights)
        self._table = self._weights["tokens"]
        self._ones = np.ones(MAX_PRODUCT // self._table.shape[1] + 1, np.float32)
        self.limits = EngineLimits(
            embedding_dim=spec.embedding_dim if spec.modules else spec.encoder.hidden_size,
            is_per_token=not spec.modules,
            is_padded=False,
            max_batch_tokens=max_batch_tokens or MAX_BATCH_TOKENS,
            num_parallel_batches=1,
            max_inflight_batches=2,
            max_inflight_bulk=1,
            is_instant=True,
        )

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> InFlight:
        """Compute a batch."""
        done = InFlight(batch, on_done)
        done.vectors = self.compute(batch)
        on_done()
        return done

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch on the calling thread."""
        rows: NDArray[np.float32] = self._table.take(batch.token_ids, axis=0)
        if not self._modules:
            return rows
        means = np.empty((batch.num_seqs, rows.shape[1]), np.float32)
        for row, (start, end) in enumerate(pairwise(batch.cu_seqlens.tolist())):
            self._sum(rows[start:end], means[row])
        means /= batch.seq_lens.astype(np.float32)[:, None]
        return apply_modules(means, self._modules, lambda: self._weights)

    def _sum(self, rows: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Add the rows of a text up.

        A product with ones takes a third of the time of np.add.reduce, and np.add.reduceat over all
        texts six times as long. OpenBLAS divides larger products among threads: these must be
        woken, and the sum would depend on their number.

        Source: interface/gemv.c of OpenBLAS 0.3.
        """
        if rows.size < MAX_PRODUCT:
            np.dot(self._ones[: len(rows)], rows, out=out)
        else:
            np.add.reduce(rows, axis=0, out=out)

    def close(self) -> None:
        """Do nothing: nothing is in flight, and the table is freed with the engine."""
