"""Numbers behind batching decisions, passed in as one object; an engine has its `EngineLimits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from embedlib.engines.base import EngineLimits

TOKENS_OF_A_TEXT: Final = 64
"""A short text, which most are: so many fill a batch."""


@dataclass(frozen=True, kw_only=True)
class BatchingPolicy:
    """How texts are divided into lanes, micro-batches and batches."""

    max_query_texts: int = 16
    """Maximum texts of an `encode_query` on the query lane; more go to the bulk lane."""

    micro_batch_texts: int = 64
    """Texts that the tokenizer thread tokenizes at a time: enough to use every core, few enough
    that the engine starts soon. More where a batch of the engine holds more, see `micro_batch`."""

    max_micro_batch_texts: int = 512
    """After each micro-batch the thread waits for the interpreter, milliseconds where another one
    launches a GPU's kernels from Python. Source: docs/measurements/gpu.md, next on a GPU."""

    instant_texts: int = 256
    """The same where that thread computes them as well: more of them share each step in Python."""

    window_seqs: int = 1024
    """Bulk sequences sorted by length together. More would pad less (2 % at 1,024 mixed texts
    already) but let a long text be overtaken for longer."""

    max_query_streak: int = 8
    """Maximum query batches in a row while bulk waits with nothing in flight; then one of bulk."""

    min_split_tokens: int = 32
    """Minimum tokens per batch when a small job is split into parallel batches. A job too small to
    split is computed as a query, on all cores; a query that arrives in the meantime waits for
    milliseconds. Source: docs/measurements/queries.md, few texts."""

    def micro_batch(self, limits: EngineLimits) -> int:
        """Return how many texts are tokenized at a time for an engine."""
        if limits.is_instant:
            return self.instant_texts
        texts_of_a_batch = limits.max_batch_tokens // TOKENS_OF_A_TEXT
        return max(self.micro_batch_texts, min(self.max_micro_batch_texts, texts_of_a_batch))


DEFAULT_POLICY: Final = BatchingPolicy()
