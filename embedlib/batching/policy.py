"""The numbers behind every batching decision, in one object that is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class BatchingPolicy:
    """How texts are divided into lanes, micro-batches and batches."""

    max_query_texts: int = 16
    """Maximum texts of an `encode_query` on the query lane; more go to the bulk lane."""

    micro_batch_texts: int = 64
    """Texts that the tokenizer thread tokenizes at a time: enough to use every core, few enough
    that the engine starts soon."""

    instant_texts: int = 256
    """The same where that thread computes them as well: more of them share each step in Python."""

    window_seqs: int = 1024
    """Bulk sequences sorted by length together. More would pad less (2 % at 1,024 mixed texts
    already) but let a long text be overtaken for longer."""

    max_query_streak: int = 8
    """Maximum query batches in a row while bulk waits with nothing in flight; then one of bulk."""

    max_batch_padding_tokens: int = 20
    """Padding tokens accepted to save one batch. Source: docs/benchmarks.md, few texts."""

    min_split_tokens: int = 32
    """Minimum tokens per batch when a small job is split into parallel batches. A job too small to
    split is computed as a query, on all cores; a query that arrives in the meantime waits for
    milliseconds. Source: docs/benchmarks.md, few texts."""


DEFAULT_POLICY: Final = BatchingPolicy()
