"""The seam between scheduling and computing: what a batch is and what an engine must do.

An engine knows nothing of text, queues or databases; the batch manager knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Lane(Enum):
    """Who is waiting: somebody at a prompt, or a backfill."""

    QUERY = "query"
    BULK = "bulk"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B sequences computed together, packed: T tokens, one sequence behind the other."""

    lane: Lane
    token_ids: NDArray[np.int32]
    """int32[T]."""
    cu_seqlens: NDArray[np.int32]
    """int32[B + 1], starts at 0: sequence b is token_ids[cu_seqlens[b]:cu_seqlens[b + 1]]."""
    num_prompt_tokens: NDArray[np.int32]
    """int32[B]: leading tokens that pooling leaves out (0 unless the model excludes its prompt)."""
    num_type0_tokens: NDArray[np.int32]
    """int32[B]: leading tokens of type 0, those of a pair's first text; the others are of type 1.
    The whole length where a sequence is one text."""

    @property
    def num_seqs(self) -> int:
        """B."""
        return len(self.cu_seqlens) - 1

    @property
    def seq_lens(self) -> NDArray[np.int32]:
        """int32[B], in tokens; never 0."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What the scheduler must know of an engine."""

    embedding_dim: int
    """D."""
    is_per_token: bool = False
    """True: a result has one row for every token, float32[T, D]; the spec has no pooling."""
    is_padded: bool
    """True: a batch costs num_seqs * longest tokens. False: it costs the sum of its lengths."""
    max_batch_tokens: int
    """Best token budget of a bulk batch, by measurement."""
    num_parallel_batches: int
    """Batches computed side by side; a small job is cut into this many."""
    max_inflight_batches: int
    """Batches taken at most: those computing and those made ready behind them."""
    max_inflight_bulk: int
    """How many of those may be bulk; the rest is kept free for queries."""


class Pending(Protocol):
    """A batch on its way through the engine."""

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], one row per sequence in batch order; called once, after `on_done`.

        With `is_per_token` it is float32[T, D], one row per token, in the batch's order.

        Raises:
            EngineOutOfMemoryError: the batch did not fit; a smaller one may.
            EngineRunError: the batch failed.
        """
        ...


@runtime_checkable
class CancellablePending(Pending, Protocol):
    """One that can be given up."""

    def cancel(self) -> None:
        """Stop computing soon, if it still goes on: nobody wants the result.

        `on_done` is called all the same, and `result` may raise.
        """
        ...


class Engine(Protocol):
    """Runs batches of one model on one device."""

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler must know; constant."""
        ...

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        """Start a batch and return at once.

        Only one thread calls this. `on_done` is called exactly once, from any thread, when `result`
        will no longer block, also when the batch failed. It must be quick and does not raise.
        """
        ...

    def close(self) -> None:
        """Wait for what is in flight, then free the device. Calling it again does nothing.

        A loaded model calls this on the thread that calls `submit`, so its own `close` has a time
        limit whether or not this one takes a `timeout`.
        """
        ...


@runtime_checkable
class CallerEngine(Engine, Protocol):
    """An engine that can also compute on the thread of whoever calls it."""

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch here and now, and return what `Pending.result` would.

        One thread at a time calls this, beside the one that calls `submit`.

        Raises:
            EngineOutOfMemoryError: the batch did not fit; a smaller one may.
            EngineRunError: the batch failed.
        """
        ...
