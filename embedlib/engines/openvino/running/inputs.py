"""What an inference request takes and gives: a batch as inputs, vectors, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.openvino.graphs.stages import Request


def infer_batch(
    request: Request,
    batch: Batch,
    prefix: Mapping[str, NDArray[np.generic]],
    min_rows: int = 1,
    before: Callable[[], object] = lambda: None,
) -> NDArray[np.float32]:
    """Compute a batch and return float32[B, D] or float32[B, L, D], a view of the request's memory.

    Args:
        request: computes no other batch at the same time.
        batch: is padded on the right.
        prefix: the inputs of a prefix by name; a graph that takes none does not read them.
        min_rows: pad to so many tokens.
        before: called before each stage of the graph, if there are several.

    Raises:
        RuntimeError: it failed.
    """
    token_ids = pad(batch, min_rows)
    arrays = {
        "token_ids": token_ids,
        "indices": np.arange(token_ids.shape[1], dtype=np.int32),
        "seq_lens": batch.seq_lens,
        "num_type0_tokens": batch.num_type0_tokens,
        "num_prompt_tokens": batch.num_prompt_tokens,
        "num_attended": batch.seq_lens if batch.num_attended is None else batch.num_attended,
        **prefix,
    }
    request.infer(arrays, before)  # `arrays` live until the end of this function
    return request.vectors


def pad(batch: Batch, min_rows: int = 1) -> NDArray[np.int32]:
    """Lay a packed batch out as int32[B, L] with B * L >= min_rows, padded right with id 0."""
    length = max(int(batch.seq_lens.max()), -(-min_rows // batch.num_seqs))
    if batch.num_seqs == 1 and length == len(batch.token_ids):
        return batch.token_ids[np.newaxis]
    places = is_token(batch, length)
    padded = np.zeros(places.shape, np.int32)
    padded[places] = batch.token_ids
    return padded


def is_token(batch: Batch, length: int) -> NDArray[np.bool_]:
    """bool[B, length]: where the tokens of a packed batch lie once it is padded on the right."""
    places: NDArray[np.bool_] = np.arange(length) < batch.seq_lens[:, None]
    return places


def last_line(error: Exception) -> str:
    """The last line of an OpenVINO message; the ones before are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
