"""The seam between scheduling and computing: what a batch is and what an engine must do.

An engine knows nothing of text, queues or databases; the batch manager knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Lane(Enum):
    """Priority of a batch: a query, whose caller waits for it, or bulk work, a backfill."""

    QUERY = "query"
    BULK = "bulk"

    __hash__ = object.__hash__  # by identity as its equality is; Enum's is written in Python


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
    The length of the sequence if it is a single text."""
    num_attended: NDArray[np.int32] | None = None
    """int32[B]: leading tokens that the tokens of a sequence attend to; None: all. Fewer only in a
    model whose spec has a query expansion that is not attended."""

    @property
    def num_seqs(self) -> int:
        """Number of sequences, B."""
        return len(self.cu_seqlens) - 1

    @property
    def seq_lens(self) -> NDArray[np.int32]:
        """int32[B]: lengths in tokens, at least 1."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]


PADDING_TOKENS: Final = 20
"""Another batch takes the time of some 12 tokens more than its own tokens. Source:
docs/measurements/queries.md, few texts."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The properties of an engine that the scheduler plans with."""

    embedding_dim: int
    """Numbers per row, D; with a head one per label."""
    is_per_token: bool = False
    """True: a result has one row per token, float32[T, D]; the spec has no pooling."""
    is_sparse: bool = False
    """True: most of the D numbers of a row are 0, and only the others are kept."""
    is_padded: bool
    """True: a batch costs num_seqs * longest tokens. False: it costs the sum of its lengths."""
    max_padding_tokens: int = PADDING_TOKENS
    """Padding tokens that a batch may have, where it is padded, to save another one."""
    max_batch_tokens: int
    """Token budget of a batch, chosen by measurement for bulk work."""
    num_parallel_batches: int
    """Batches computed in parallel; a small job is divided into this many."""
    max_inflight_batches: int
    """Maximum batches in flight: those that are computed and those prepared behind them."""
    max_inflight_bulk: int
    """Maximum bulk batches among them; the others are reserved for queries."""
    is_instant: bool = False
    """True: a batch takes less time than handing it over. It is a `CallerEngine` then, and any
    number of threads may compute at once, also while it is closed."""

    @property
    def max_inflight_queries(self) -> int:
        """Maximum batches of queries in flight: as many as are reserved for them; if none is, all.

        More would wait in front of a busy engine, where no other query can join them.
        """
        return self.max_inflight_batches - self.max_inflight_bulk or self.max_inflight_batches


class Pending(Protocol):
    """A batch in flight."""

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], one row per sequence in batch order; called once, after `on_done`.

        With `is_per_token` it returns float32[T, D], one row per token in batch order.

        Raises:
            EngineOutOfMemoryError: the batch did not fit; a smaller one may.
            EngineRunError: the batch failed.
        """
        ...


@runtime_checkable
class CancellablePending(Pending, Protocol):
    """A batch in flight that can be cancelled."""

    def cancel(self) -> None:
        """Stop computing as soon as possible; the result is no longer needed.

        The engine still calls `on_done`, and `result` may raise.
        """
        ...


class InFlight:
    """A batch in flight whose vectors come to the host. See `Pending`.

    Its engine sets `vectors` or `error`, and then calls `on_done`.
    """

    def __init__(self, batch: Batch, on_done: Callable[[], None]) -> None:
        self.batch = batch
        self.on_done = on_done
        self.vectors: NDArray[np.float32] | None = None
        self.error: BaseException | None = None

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], or float32[T, D] for a model without pooling."""
        if self.error is not None:
            raise self.error
        assert self.vectors is not None, "a batch has no result yet; this is a bug in embedlib"
        return self.vectors


class Engine(Protocol):
    """Runs batches of one model on one device."""

    @property
    def limits(self) -> EngineLimits:
        """The properties that the scheduler plans with; constant."""
        ...

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        """Start a batch and return at once.

        Only one thread calls this. The engine calls `on_done` exactly once, on any thread, when
        `result` will no longer block, even if the batch failed. `on_done` is quick and does not
        raise.
        """
        ...

    def close(self) -> None:
        """Wait for the batches in flight, then free the device. Calling it again does nothing.

        The batch manager calls this on the thread that calls `submit`; so the model's `close` has a
        time limit even if this method has none.
        """
        ...


@runtime_checkable
class LosableEngine(Engine, Protocol):
    """An engine whose device can be lost for as long as the process lives."""

    @property
    def lost(self) -> str | None:
        """Why no batch will be computed any more, and what to do; None while batches may be."""
        ...


@runtime_checkable
class CallerEngine(Engine, Protocol):
    """An engine that can also compute on the calling thread."""

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch on the calling thread and return what `Pending.result` would.

        At most one thread at a time calls this, unless the engine `is_instant`; another one may
        call `submit` meanwhile.

        Raises:
            EngineOutOfMemoryError: the batch did not fit; a smaller one may.
            EngineRunError: the batch failed.
        """
        ...


def why_lost(engine: Engine) -> str | None:
    """Return why an engine will never compute again; None: it may, or does not tell."""
    return engine.lost if isinstance(engine, LosableEngine) else None
