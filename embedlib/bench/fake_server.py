"""A server whose engine answers at once: what is left is the cost of the server itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Batch, EngineLimits, InFlight
from embedlib.serve import create_app
from embedlib.serve.http.server import Listen, serve
from embedlib.serve.logs.access_log import AccessLog
from embedlib.testing import byte_tokenizer, fake_spec

DIM = 384
"""Of MiniLM's vectors."""


class InstantEngine:
    """An engine that returns random rows without computing anything."""

    def __init__(self) -> None:
        """Draw the rows."""
        self.limits = EngineLimits(
            embedding_dim=DIM,
            is_padded=False,
            max_batch_tokens=16_384,
            num_parallel_batches=1,
            max_inflight_batches=3,
            max_inflight_bulk=2,
        )
        rows = np.random.default_rng(0).standard_normal((16_384, DIM), np.float32)
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> InFlight:
        """Be done."""
        done = InFlight(batch, on_done)
        done.vectors = self._rows[: batch.num_seqs]
        on_done()
        return done

    def close(self) -> None:
        """Do nothing."""


def main(port: int) -> None:
    """Serve on a port of this machine until SIGTERM, with a log as `embedlib serve` has it."""
    config = Config(on_truncate="ignore")  # as the server loads models
    embedder = Embedder.from_engine(
        InstantEngine(), replace(fake_spec(512), embedding_dim=DIM), byte_tokenizer(), config
    )
    serve(create_app({"fake": embedder}, log=AccessLog()), Listen(port=port))


if __name__ == "__main__":
    main(int(sys.argv[-1]))
