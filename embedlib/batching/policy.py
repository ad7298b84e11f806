"""The numbers that the batching decides by, in one object that is handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class BatchingPolicy:
    """How texts are divided into lanes, micro-batches and batches."""

    max_query_texts: int = 16
    """Texts: `encode_query` with more texts than this is a backfill and goes to the bulk lane."""

    micro_batch_texts: int = 64
    """Texts that the tokenizer thread tokenizes in one call: enough to use every core, few enough
    that the engine starts soon."""

    window_seqs: int = 1024
    """Bulk sequences sorted by length together. More would pad less (2 % at 1,024 mixed texts
    already) but let a long text be overtaken for longer."""

    max_query_streak: int = 8
    """Query batches in a row while bulk waits and has nothing in flight; then bulk gets one."""

    max_batch_padding_tokens: int = 20
    """Padding, in tokens, that is worth one batch less. Source: docs/benchmarks.md, few texts."""

    min_split_tokens: int = 32
    """A small job is not split among streams into batches with fewer tokens than this. All cores
    compute such a job together, as they compute a query; a query that arrives meanwhile waits for
    it for milliseconds. Source: docs/benchmarks.md, few texts."""


DEFAULT_POLICY: Final = BatchingPolicy()
