"""Checks what every engine promises, for the tests of an engine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, CallerEngine, Engine, Lane
from embedlib.models.spec import ModelSpec
from embedlib.testing.asserts import need_asserts
from embedlib.testing.batches import make_batch
from embedlib.testing.engine import WAIT_SECONDS


def check_engine(
    engine: Engine,
    spec: ModelSpec,
    *,
    tolerance: float = 1e-5,
    wait_seconds: float = WAIT_SECONDS,
) -> None:
    """Check what every engine promises, then close it; for the tests of an engine.

    Rows are in batch order. A sequence gets the same vector alone, in any batch and in either lane,
    and also on the caller's thread if the engine supports that. One token and the longest sequence
    work. `on_done` is called once, and closing twice does no harm. For a model with a head the
    sequences are pairs; without pooling there is one row per token.

    Args:
        engine: the engine. One that fails stays open: its `close` may wait for what never ends.
        spec: the model it runs.
        tolerance: the largest difference of an element between two batches.
        wait_seconds: a batch that takes longer has failed.

    Raises:
        AssertionError: if the engine violates the contract, or Python runs no assert statements.
    """
    need_asserts("check_engine")
    random = np.random.default_rng(0)
    longest = min(spec.max_seq_tokens, 300)
    lengths = [min(length, longest) for length in (1, 2, 3, 7, 16, longest // 2 or 1, longest)]
    is_pair = spec.head is not None
    is_per_token = engine.limits.is_per_token
    sequences = [
        (
            random.integers(0, spec.encoder.vocab_size, length),
            (length + 1) // 2 if is_pair else length,
        )
        for length in lengths
    ]
    run = partial(_run, engine, wait_seconds)
    alone = [run([ids], Lane.QUERY)[0] for ids in sequences]
    for vector, length in zip(alone, lengths, strict=True):
        shape = (length, spec.embedding_dim) if is_per_token else (spec.embedding_dim,)
        assert vector.dtype == np.float32, f"vectors are {vector.dtype}, not float32"
        assert vector.shape == shape, f"a vector has shape {vector.shape}"
        assert np.isfinite(vector).all(), "a vector is not finite"
    for lane in Lane:
        for order in (range(len(sequences)), random.permutation(len(sequences)), [2, 2, 2]):
            vectors = run([sequences[index] for index in order], lane)
            for vector, index in zip(vectors, order, strict=True):
                difference = float(np.abs(vector - alone[index]).max())
                assert difference <= tolerance, (
                    f"{lengths[index]} tokens: the vector changes by {difference:.1e} in a batch "
                    f"of {len(vectors)} on the {lane.value} lane"
                )
    if isinstance(engine, CallerEngine):
        for vector, one in zip(alone, sequences, strict=True):
            rows = engine.compute(_batch([one], Lane.QUERY))
            difference = float(np.abs((rows if is_per_token else rows[0]) - vector).max())
            assert difference <= tolerance, (
                f"{len(one[0])} tokens: the vector changes by {difference:.1e} on its caller's "
                "thread"
            )
    engine.close()
    engine.close()


def _run(
    engine: Engine,
    wait_seconds: float,
    sequences: Sequence[tuple[NDArray[np.int64], int]],
    lane: Lane,
) -> list[NDArray[np.float32]]:
    """Run one batch and return the rows of each sequence.

    Args:
        engine: what runs it.
        wait_seconds: a batch that takes longer has failed.
        sequences: ids, and how many of them are of type 0.
        lane: who waits.
    """
    batch = _batch(sequences, lane)
    done = threading.Semaphore(0)
    pending = engine.submit(batch, done.release)
    assert done.acquire(timeout=wait_seconds), f"on_done was not called in {wait_seconds} s"
    vectors = pending.result()
    assert not done.acquire(blocking=False), "on_done was called twice"
    if engine.limits.is_per_token:
        num_tokens = len(batch.token_ids)
        assert len(vectors) == num_tokens, (
            f"the engine returned {len(vectors)} rows for {num_tokens} tokens"
        )
        return np.split(vectors, batch.cu_seqlens[1:-1])
    num_seqs = batch.num_seqs
    assert len(vectors) == num_seqs, (
        f"the engine returned {len(vectors)} rows for {num_seqs} sequences"
    )
    return list(vectors)


def _batch(sequences: Iterable[tuple[NDArray[np.int64], int]], lane: Lane) -> Batch:
    ids, num_type0_tokens = zip(*sequences, strict=True)
    return make_batch(ids, lane, num_type0_tokens=num_type0_tokens)
