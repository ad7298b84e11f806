"""Into how many stages a graph is cut, and when their memory is returned."""

from __future__ import annotations

from typing import Final

MAX_STAGES: Final = 8
"""A query waits for one of them at most. So a batch of eight times as many tokens as a query costs
it about as much as another query; more stages gain little and have threads of their own."""
MIN_TRIMMED_ROWS: Final = 256
"""Tokens of a batch from which on a stage lets go of its memory, and the last one returns it to the
system. To return it behind each stage takes a tenth to a third of a batch's time, never to return
it more memory: glibc keeps it in pieces. Source: docs/measurements/memory.md, batches of a
shared model."""
MAX_TOGETHER_TOKENS: Final = 1 << 15
"""Of batches that a `LayerwiseEngine` computes together: it keeps a row of each token, 512 MiB at
7 billion weights. All built-in texts of `fidelity` fit."""
